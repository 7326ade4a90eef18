#ifndef JAX_CXL_NCCL_FACTS_H_
#define JAX_CXL_NCCL_FACTS_H_

#include <cstdint>
#include <span>
#include <string>

#include "cc/base/status.h"
#include "cc/comm/call/tuning.h"
#include "cc/nccl/interface/settings.h"

namespace jax_cxl::nccl {

// What the ranks of a communicator tell each other about their GPUs before they
// open channels.
struct Facts {
  int32_t multiprocessors = 0;
  uint8_t gpu[16] = {};  // its UUID
  // Settings that have to be equal.
  uint64_t rank_bytes = 0;
  uint32_t coherence = 0;  // a pool::CoherenceMode
  uint32_t gpu_writes_memory = 0;
  uint64_t compare = TheSettings().compare;
  uint32_t link_mb_per_s = 0;  // to the host
  comm::Tuning tuning;         // the table of rank 0 counts
  char problem[472] = {};      // zero-terminated; empty: none
};

// Returns the least number of multiprocessors, or why the ranks cannot make a
// communicator. All ranks get the same result.
Result<int> LeastMultiprocessors(std::span<const Facts> ranks);

// PCIe 5.0 with 16 lanes, in MB/s.
inline constexpr uint32_t kMeasuredLink = 55000;

// Returns the speed of a GPU's link to the host in MB/s, or kMeasuredLink if it
// is unknown. `folder` is the folder of the GPU in /sys.
uint32_t LinkOf(const std::string& folder);

}  // namespace jax_cxl::nccl

#endif  // JAX_CXL_NCCL_FACTS_H_
