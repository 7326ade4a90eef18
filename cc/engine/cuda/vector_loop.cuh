#ifndef JAX_CXL_ENGINE_CUDA_VECTOR_LOOP_CUH_
#define JAX_CXL_ENGINE_CUDA_VECTOR_LOOP_CUH_

#include <cstdint>

#include "cc/engine/cuda/block.cuh"
#include "cc/engine/cuda/stripes.cuh"

namespace jax_cxl::cuda {

// A vector that a thread moves. The value starts as 0, because its load may be
// skipped. Without the 0, the compiler would keep the old register through the
// whole kernel, save other registers to memory, and wait for their loads before
// it saves them.
struct MovingVector {
  uint64_t offset;  // from the start of the step's bytes; at least their
                    // number if the vector is outside
  uint4 value = {};
};

// Visits this thread's vectors of the `bytes` bytes of a step, several at a
// time. `Vector` is MovingVector, or derived from it. Each phase is a function
// of one Vector. All vectors of a batch go through a phase before any of them
// enters the next phase, so their loads overlap. Phases skip vectors outside
// the range.
template <typename Vector, typename Phase, typename... Phases>
__device__ __forceinline__ void ForEachVector(DataWarp& warp,
                                              const StripeVectors& vectors,
                                              uint64_t bytes,
                                              const Phase& first,
                                              const Phases&... others) {
  constexpr int kUnroll = 8;
  for (uint32_t base = warp.thread(); base < vectors.size();
       base += warp.threads() * kUnroll) {
    Vector several[kUnroll];
#pragma unroll
    for (int k = 0; k < kUnroll; ++k) {
      const uint32_t i = base + k * warp.threads();
      several[k].offset = i < vectors.size() ? vectors.Offset(i) : bytes;
      first(several[k]);
    }
    const auto for_all = [&](const auto& phase) {
#pragma unroll
      for (int k = 0; k < kUnroll; ++k) phase(several[k]);
    };
    (for_all(others), ...);
  }
  warp.Rotate(vectors.size());
}

}  // namespace jax_cxl::cuda

#endif  // JAX_CXL_ENGINE_CUDA_VECTOR_LOOP_CUH_
