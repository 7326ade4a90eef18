#ifndef JAX_CXL_POOL_OLDER_JOBS_H_
#define JAX_CXL_POOL_OLDER_JOBS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "cc/base/status.h"

namespace jax_cxl::pool {

// A part of a file or device that a new pool will occupy.
struct WantedPart {
  int fd = -1;
  std::string path;
  uint64_t offset = 0;
  uint64_t bytes = 0;
  uint64_t file_bytes = 0;  // size of the whole file or device
  uint64_t align = 0;  // of a device; pools begin at its multiples. 0: a file
  // True if this process holds the lock of the part: then no other process of
  // this kernel uses the part.
  bool locked = false;
};

// The place of a header that a dead job has left inside a part.
struct OldHeader {
  int part;
  uint64_t offset;  // relative to the part
};

// Looks for other jobs in parts that this process is about to format. If such a
// job has a process on this kernel, the process counts as living if the kernel
// knows it. A process on another kernel counts as living if its heartbeat
// advances within `dead_after_s`. In a file, a pool begins at the part's
// offset. On a device, pools of other jobs may begin anywhere and overlap the
// part.
//
// Returns the headers that dead jobs have left. Fails with kAlreadyExists if a
// job lives, and names one of its processes.
Result<std::vector<OldHeader>> CheckNoJobLives(
    const std::vector<WantedPart>& parts, double dead_after_s);

}  // namespace jax_cxl::pool

#endif  // JAX_CXL_POOL_OLDER_JOBS_H_
