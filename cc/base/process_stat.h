#ifndef JAX_CXL_BASE_PROCESS_STAT_H_
#define JAX_CXL_BASE_PROCESS_STAT_H_

#include <cstdint>
#include <optional>
#include <string>

namespace jax_cxl {

// Fields of /proc/PID/stat, for a process in the pid namespace of this process.
struct ProcessStat {
  char state = '?';    // field 3: 'R', 'S', 'T', 'Z', ...
  uint64_t flags = 0;  // field 9: flags of the process's first thread
  uint64_t start = 0;  // field 22: when the process started
  int exit_code = 0;   // field 52: the wait status, if exiting()

  // Returns true if the process is exiting, or is a zombie.
  bool exiting() const;
  // Returns true if the process is exiting, or is writing its memory to a core
  // dump before it exits. The kernel then no longer runs the program's code,
  // but may need seconds to free its resources, for example in the driver of a
  // GPU.
  bool ending() const;
};

// Returns nothing if no process has this pid.
std::optional<ProcessStat> ReadProcessStat(int64_t pid);
// Reads the file of a process or of one thread in `folder` of /proc.
std::optional<ProcessStat> ReadStat(const std::string& folder);

// Describes how a process of this host ended, for example "with status 3" or
// "by signal 9 (Killed)". `pidfd` must have been opened while the process ran.
// Returns an empty string if the kernel does not give the exit status. Before
// Linux 6.15, this is so once the parent has collected the status.
std::string DescribeExit(int pidfd, int64_t pid);

}  // namespace jax_cxl

#endif  // JAX_CXL_BASE_PROCESS_STAT_H_
