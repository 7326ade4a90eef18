#ifndef JAX_CXL_POOL_OLDER_JOBS_H_
#define JAX_CXL_POOL_OLDER_JOBS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "cc/base/status.h"

namespace jax_cxl::pool {

// A part of a file or device that a new pool is to take.
struct WantedPart {
  int fd = -1;
  std::string path;
  uint64_t offset = 0;
  uint64_t bytes = 0;
  uint64_t file_bytes = 0;  // of the whole file or device
  uint64_t align = 0;       // of a device: where pools begin. 0: a file
  // This process holds the lock of the part, so that no process of this kernel
  // uses it.
  bool locked = false;
};

// Where a dead job has left a header inside a part.
struct OldHeader {
  int part;
  uint64_t offset;  // in the part
};

// Looks for older jobs in parts that this process is about to format. Whether
// they live: what their processes on this kernel do, the kernel says; of
// processes on other kernels the heartbeats have to move within
// `dead_after_s`. In a file a pool begins at the part's offset; on a device the
// pools of other jobs may begin anywhere, and reach into the part.
// Error: kAlreadyExists if a job lives; names a process of it.
Result<std::vector<OldHeader>> CheckNoJobLives(
    const std::vector<WantedPart>& parts, double dead_after_s);

}  // namespace jax_cxl::pool

#endif  // JAX_CXL_POOL_OLDER_JOBS_H_
