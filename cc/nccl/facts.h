#ifndef JAX_CXL_NCCL_FACTS_H_
#define JAX_CXL_NCCL_FACTS_H_

#include <cstdint>
#include <span>

#include "cc/base/status.h"

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
  char problem[472] = {};  // zero-terminated; empty: none
};

// Returns the least number of multiprocessors, or why the ranks cannot make a
// communicator. All ranks get the same result.
Result<int> LeastMultiprocessors(std::span<const Facts> ranks);

}  // namespace jax_cxl::nccl

#endif  // JAX_CXL_NCCL_FACTS_H_
