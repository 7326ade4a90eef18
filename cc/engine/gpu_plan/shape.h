#ifndef JAX_CXL_ENGINE_GPU_PLAN_SHAPE_H_
#define JAX_CXL_ENGINE_GPU_PLAN_SHAPE_H_

#include <cstdint>

#include "cc/plan/gpu_geometry.h"

namespace jax_cxl::cuda {

inline constexpr uint32_t kMaxDataWarps = 16;
inline constexpr uint32_t kMaxThreads = 32 * kMaxDataWarps;

// How many thread blocks execute a call, and how many threads of each block
// send and receive. A block has at most kMaxThreads sending and receiving
// threads together. All ranks of a group have the same number of blocks.
struct Shape {
  // A power of two, at most kMaxBlocks.
  uint32_t blocks = plan::kGpuBlocks;
  uint32_t sending_threads = 64;  // multiples of 32
  uint32_t receiving_threads = 448;

  constexpr uint32_t sending_warps() const { return sending_threads / 32; }
  constexpr uint32_t data_warps() const {
    return (sending_threads + receiving_threads) / 32;
  }

  bool operator==(const Shape&) const = default;
};

}  // namespace jax_cxl::cuda

#endif  // JAX_CXL_ENGINE_GPU_PLAN_SHAPE_H_
