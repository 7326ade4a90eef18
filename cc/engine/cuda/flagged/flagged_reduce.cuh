#ifndef JAX_CXL_ENGINE_CUDA_FLAGGED_FLAGGED_REDUCE_CUH_
#define JAX_CXL_ENGINE_CUDA_FLAGGED_FLAGGED_REDUCE_CUH_

#include <cstdint>

#include "cc/engine/cuda/device_call.h"
#include "cc/engine/cuda/device_memory.cuh"
#include "cc/engine/cuda/flagged/flagged_units.cuh"
#include "cc/engine/cuda/fold.cuh"

// Reductions of short messages (flagged.h). A thread fetches the operands of a
// few members at a time, as they arrive, and folds them in the members' order.
namespace jax_cxl::cuda::flagged {

// Fills `operands` with the data of members [first, first + operands.count) for
// the current unit of `units`. Waits until the data have arrived. Returns false
// when the call cannot continue.
__device__ __forceinline__ bool Fetch(const Task& task, Wait& wait,
                                      const Units& units, int first,
                                      Operands& operands) {
  const DeviceCall& call = task.call;
  const ShortStep& step = units.step();
  const uint32_t flag = FlagOf(call);
  uint32_t missing = (1u << operands.count) - 1;  // one bit per source
  const int own = call.self - first;
  if (own >= 0 && own < operands.count) {
    operands.values[own] =
        LoadLocal(call.input + step.input_from + units.i(), units.left());
    missing &= ~(1u << own);
  }
  while (missing != 0) {
    // Start all loads before looking at the first result.
    Arriving arriving[kSources];
#pragma unroll
    for (int k = 0; k < kSources; ++k) {
      if ((missing >> k & 1) != 0)
        arriving[k] =
            Arriving(UnitVectors(task, first + k, step.from + units.i()));
    }
#pragma unroll
    for (int k = 0; k < kSources; ++k) {
      if ((missing >> k & 1) == 0 || !arriving[k].Has(flag)) continue;
      operands.values[k] = arriving[k].Data();
      missing &= ~(1u << k);
    }
    if (missing != 0 && !wait.GoOn(first + __ffs(missing) - 1)) return false;
  }
  return true;
}

template <typename Type>
__device__ __forceinline__ uint4 SumAs(uint4 first, uint4 second) {
  ElementFold<Type> fold;
  fold.Begin(first);
  fold.Add(ReduceOp::kSum, second);
  return fold.Result();
}

// Returns true if a step is a sum of two members' numbers of a type of
// gradients and activations. Such sums are frequent, and have code of their own
// without calls and without data in memory: a program between two calls drops
// the rest of the code from the caches.
__device__ __forceinline__ bool IsPlainSum(const DeviceCall& call,
                                           const ShortStep& step) {
  return step.last - step.first == 2 && call.reduce_op == ReduceOp::kSum &&
         call.divisor == 0 && step.first <= call.self &&
         call.self < step.last &&
         (call.dtype == DType::kBfloat16 || call.dtype == DType::kFloat32 ||
          call.dtype == DType::kFloat16);
}

__device__ __forceinline__ bool PlainSum(const Task& task, Shared& shared,
                                         const Units& units) {
  const DeviceCall& call = task.call;
  const ShortStep& step = units.step();
  const uint4 own =
      LoadLocal(call.input + step.input_from + units.i(), units.left());
  const bool is_first = call.self == step.first;
  uint4 data;
  if (!Await(task, shared, is_first ? step.first + 1 : step.first,
             step.from + units.i(), &data))
    return false;
  const uint4 first = is_first ? own : data, second = is_first ? data : own;
  const uint4 sum = call.dtype == DType::kFloat32
                        ? SumAs<Native<float>>(first, second)
                    : call.dtype == DType::kBfloat16
                        ? SumAs<NarrowFloat<cpu::Bfloat16>>(first, second)
                        : SumAs<NarrowFloat<cpu::Float16>>(first, second);
  StoreLocal(call.output + step.to + units.i(), sum, units.left());
  return true;
}

__device__ inline bool Reduce(const Task& task, Shared& shared,
                              const Units& units) {
  const DeviceCall& call = task.call;
  const ShortStep& step = units.step();
  if (IsPlainSum(call, step)) return PlainSum(task, shared, units);
  Wait wait(call, shared);
  Operands operands;
  uint4 result = {};
  for (int first = step.first; first < step.last; first += kSources) {
    operands.count = min(step.last - first, kSources);
    if (!Fetch(task, wait, units, first, operands)) return false;
    result = FoldIn(call, operands, first == step.first);
    // The result for a single source is a copy of it. A fold would change its
    // NaNs.
    if (step.last - step.first == 1) result = operands.values[0];
  }
  StoreLocal(call.output + step.to + units.i(), result, units.left());
  return true;
}

}  // namespace jax_cxl::cuda::flagged

#endif  // JAX_CXL_ENGINE_CUDA_FLAGGED_FLAGGED_REDUCE_CUH_
