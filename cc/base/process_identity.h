#ifndef JAX_CXL_BASE_PROCESS_IDENTITY_H_
#define JAX_CXL_BASE_PROCESS_IDENTITY_H_

#include <cstdint>
#include <string>
#include <type_traits>

namespace jax_cxl {

// Identifies a process to other processes, on its own host and on other hosts.
// The layout of the pool contains this struct.
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

ProcessIdentity ThisProcess();

// Returns true if `process` runs under the same kernel as this process.
// Compares boot ids, because two hosts may have the same name. Returns false if
// the boot id of either process is unknown.
bool OnThisKernel(const ProcessIdentity& process);

// Returns true if the pid of `process` names the same process here: both
// processes run under the same kernel, in the same pid namespace.
bool PidMeansTheSame(const ProcessIdentity& process);

// Returns true if `process` has ended. Requires PidMeansTheSame(process).
bool HasEnded(const ProcessIdentity& process);

// Returns true if /proc shows that `process` is ending (ProcessStat::ending),
// or that its pid now belongs to another process. Also returns true if the
// first thread of the process has ended, although other threads may still run.
// Requires PidMeansTheSame(process).
bool IsEnding(const ProcessIdentity& process);

// Returns a text like "process 12 (python3) on host a". The text has the name
// of the program only if PidMeansTheSame(process). The text is safe to print,
// whatever `process` contains.
std::string DescribeProcess(const ProcessIdentity& process);

// Returns a text like "process 12 (python3)". `pid` is a pid in the namespace
// of this process.
std::string DescribeProcess(int pid);

}  // namespace jax_cxl

#endif  // JAX_CXL_BASE_PROCESS_IDENTITY_H_
