#ifndef JAX_CXL_ENGINE_CUDA_VECTOR_LOOP_CUH_
#define JAX_CXL_ENGINE_CUDA_VECTOR_LOOP_CUH_

#include <cstdint>

#include "cc/engine/cuda/block.cuh"
#include "cc/engine/cuda/stripes.cuh"

namespace jax_cxl::cuda {

// A vector that a thread moves. A phase may skip the load of `value`, so
// `value` starts as 0. Without an initial value, the compiler would have to
// preserve the old contents of the registers for `value` through the whole
// kernel. The compiler would then spill other registers to memory, and wait for
// the loads into those registers before it spills them.
struct MovingVector {
  uint64_t offset;  // from the start of the step's bytes; `bytes` or more if
                    // the vector is not among them
  uint4 value = {};
};

// Runs `first` and then the phases `others` on this thread's vectors of a step,
// in batches of several vectors. The step has `bytes` bytes. `Vector` is
// MovingVector, or derived from it. Each phase is a function of one Vector. All
// vectors of a batch go through a phase before any of them enters the next
// phase, so their loads overlap. A phase must skip a vector whose offset is not
// below `bytes`.
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
