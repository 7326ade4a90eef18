#ifndef JAX_CXL_BASE_PROCESS_STAT_H_
#define JAX_CXL_BASE_PROCESS_STAT_H_

#include <cstdint>
#include <optional>
#include <string>

namespace jax_cxl {

// The contents of /proc/PID/stat for a process of this pid namespace.
struct ProcessStat {
  char state = '?';    // field 3: 'R', 'S', 'T', 'Z', ...
  uint64_t flags = 0;  // field 9: flags of the process's first thread
  uint64_t start = 0;  // field 22: when the process started
  int exit_code = 0;   // field 52: the wait status, if exiting()

  // True if the process exits or is a zombie.
  bool exiting() const;
  // True if the process exits, or writes its memory to a file before it exits.
  // The kernel then no longer runs its code, but may need seconds to free the
  // resources of the process, for example in the driver of a GPU.
  bool ending() const;
};

// Returns nothing if there is no such process.
std::optional<ProcessStat> ReadProcessStat(int64_t pid);

// Describes how a process of this host ended, for example "with status 3" or
// "by signal 9 (Killed)". `pidfd` was opened while the process ran. Returns an
// empty string if the kernel does not report it: before Linux 6.15, the kernel
// does not report it after the parent has collected the status.
std::string DescribeExit(int pidfd, int64_t pid);

}  // namespace jax_cxl

#endif  // JAX_CXL_BASE_PROCESS_STAT_H_
