#ifndef JAX_CXL_BASE_PROCESS_IDENTITY_H_
#define JAX_CXL_BASE_PROCESS_IDENTITY_H_

#include <cstdint>
#include <string>
#include <type_traits>

namespace jax_cxl {

// Identifies a process to processes of the same host and of other hosts. Part
// of the pool's layout.
struct ProcessIdentity {
  int64_t pid;
  uint64_t process_start;  // field 22 of /proc/PID/stat: detects a reused pid
  uint64_t pid_namespace;  // inode of /proc/self/ns/pid: a pid is unique
                           // only inside its namespace
  char boot_id[40];        // the kernel's; zero-terminated
  char host[64];           // host name; zero-terminated
};
static_assert(sizeof(ProcessIdentity) == 128);
static_assert(std::is_trivially_copyable_v<ProcessIdentity>);

// Returns the identity of this process.
ProcessIdentity ThisProcess();

// Returns true if `process` runs under the same kernel as this process.
// Compares boot ids, because two hosts may have the same name. Returns false if
// the boot id of either process is unknown.
bool OnThisKernel(const ProcessIdentity& process);

// Returns true if this process can look up `process` by its pid.
bool PidMeansTheSame(const ProcessIdentity& process);

// Returns true if `process` has ended. Requires PidMeansTheSame(process).
bool HasEnded(const ProcessIdentity& process);

// Returns true if /proc shows that `process` is ending (ProcessStat::ending),
// or that another process has its pid. Also returns true if only the first
// thread of the process has ended. Requires PidMeansTheSame(process).
bool IsEnding(const ProcessIdentity& process);

// Returns a text like "process 12 (python3) on host a". The text contains the
// name of the program only if this process can look it up. The text is
// printable, whatever `process` contains.
std::string DescribeProcess(const ProcessIdentity& process);

// Returns a text like "process 12 (python3)". `pid` belongs to this pid
// namespace.
std::string DescribeProcess(int pid);

}  // namespace jax_cxl

#endif  // JAX_CXL_BASE_PROCESS_IDENTITY_H_
