#ifndef JAX_CXL_BASE_PROCESS_IDENTITY_H_
#define JAX_CXL_BASE_PROCESS_IDENTITY_H_

#include <cstdint>
#include <string>
#include <type_traits>

namespace jax_cxl {

// Who a process is, for processes of the same host and of other hosts. Lies in
// the pool.
struct ProcessIdentity {
  int64_t pid;
  uint64_t process_start;  // field 22 of /proc/PID/stat: tells a reused pid
  uint64_t pid_namespace;  // inode of /proc/self/ns/pid: pids mean something
                           // only inside it
  char boot_id[40];        // of the kernel; zero-terminated
  char host[64];           // its name; zero-terminated
};
static_assert(sizeof(ProcessIdentity) == 128);
static_assert(std::is_trivially_copyable_v<ProcessIdentity>);

// This process.
ProcessIdentity ThisProcess();

// Whether the process runs under the kernel of this process. Host names do not
// tell: two hosts may have the same one. False if a kernel does not say which
// it is.
bool OnThisKernel(const ProcessIdentity& process);

// Whether this process can look for `process` by its pid.
bool PidMeansTheSame(const ProcessIdentity& process);

// Whether a process of which PidMeansTheSame has ended.
bool HasEnded(const ProcessIdentity& process);

// "process 12 (python3) on host a"; the name of the program only where it can
// be known. The text is printable, whatever lies in the pool.
std::string DescribeProcess(const ProcessIdentity& process);

// "process 12 (python3)" of this pid namespace.
std::string DescribeProcess(int pid);

}  // namespace jax_cxl

#endif  // JAX_CXL_BASE_PROCESS_IDENTITY_H_
