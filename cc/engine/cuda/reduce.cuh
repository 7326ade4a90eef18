#ifndef JAX_CXL_ENGINE_CUDA_REDUCE_CUH_
#define JAX_CXL_ENGINE_CUDA_REDUCE_CUH_

#include <cstdint>

#include "cc/engine/cuda/device_call.h"
#include "cc/engine/cuda/device_memory.cuh"
#include "cc/engine/cuda/element_types.cuh"
#include "cc/engine/cuda/fold.cuh"
#include "cc/engine/cuda/multiply.cuh"
#include "cc/engine/cuda/stripes.cuh"

// Reductions directly from the peers' slots. They use the functions of the CPU
// engine and give the same bits (the contract is in
// cc/engine/kernels/kernels.h).
namespace jax_cxl::cuda {

struct ReduceTask {
  const DeviceCall* call;
  const DeviceStep* step;
  StripeVectors vectors;
  uint32_t slot;       // slot index of the sources
  std::byte* to;       // null: the result does not go to the output
  std::byte* to_slot;  // null: it does not go to my slot
  uint32_t thread;
  uint32_t threads;
  // A buffer that contains the peers' operands one after another. Null if the
  // operands are in slots.
  const std::byte* staging = nullptr;
};

__host__ __device__ constexpr uint64_t StagedBytes(uint64_t bytes) {
  return (bytes + 127) / 128 * 128;
}

__device__ __forceinline__ const std::byte* SourceOf(const ReduceTask& task,
                                                     int member) {
  const DeviceCall& call = *task.call;
  const DeviceStep& step = *task.step;
  if (member == call.self) return call.input + step.input_from;
  if (task.staging == nullptr)
    return call.members[member].slots[task.slot] + step.from;
  const bool behind_me = step.first <= call.self && call.self < member;
  return task.staging +
         (member - step.first - behind_me) * StagedBytes(step.bytes);
}

// Sets `offset` to the offsets of the kUnroll vectors that this thread reduces
// together. The first one is vector `base`. The block has `size` vectors in
// this step. For a vector beyond these, the offset is `bytes`.
template <int kUnroll>
__device__ __forceinline__ void FindOffsets(const ReduceTask& task,
                                            uint32_t base, uint32_t size,
                                            uint32_t bytes,
                                            uint32_t (&offset)[kUnroll]) {
#pragma unroll
  for (int k = 0; k < kUnroll; ++k) {
    const uint32_t i = base + k * task.threads;
    offset[k] =
        i < size ? static_cast<uint32_t>(task.vectors.Offset(i)) : bytes;
  }
}

// Loads 16 bytes at each offset from each of members [first, first + kSources).
// A step has few vectors for each thread, and a load from the pool takes
// microseconds. These times must not add up over the members, so all loads
// start before any load ends. The caller must set `values` to 0 first. The
// comment on MovingVector (vector_loop.cuh) explains why.
template <int kUnroll>
__device__ __forceinline__ void LoadSources(
    const ReduceTask& task, const DeviceStep& step, int first, int self,
    uint32_t bytes, const uint32_t (&offset)[kUnroll],
    uint4 (&values)[kSources][kUnroll]) {
#pragma unroll
  for (int s = 0; s < kSources; ++s) {
    const int member = first + s;
    if (member >= step.last) break;
    const std::byte* source = SourceOf(task, member);
#pragma unroll
    for (int k = 0; k < kUnroll; ++k) {
      if (offset[k] >= bytes) continue;
      values[s][k] = member == self
                         ? LoadLocal(source + offset[k], bytes - offset[k])
                         : LoadSlot(source + offset[k]);
    }
  }
}

// Multiplies this rank's own operand, which is number `own` of the loaded
// sources. Does nothing if there is no such source.
template <int kUnroll, typename Product>
__device__ __forceinline__ void MultiplyOwn(
    int own, const Product& product, uint4 (&values)[kSources][kUnroll]) {
#pragma unroll
  for (int s = 0; s < kSources; ++s) {
    if (s != own) continue;
#pragma unroll
    for (int k = 0; k < kUnroll; ++k) values[s][k] = product(values[s][k]);
  }
}

__device__ __forceinline__ void StoreResult(const ReduceTask& task,
                                            uint32_t offset, uint4 result,
                                            uint32_t valid) {
  if (task.to != nullptr) StoreLocal(task.to + offset, result, valid);
  if (task.to_slot != nullptr) StoreSlot(task.to_slot + offset, result);
}

// Returns true if each vector of the step is whole and aligned.
__device__ __forceinline__ bool IsAligned(const ReduceTask& task) {
  const auto own = reinterpret_cast<uintptr_t>(SourceOf(task, task.call->self));
  const auto to = reinterpret_cast<uintptr_t>(task.to);
  return (own | to | task.step->bytes) % 16 == 0;
}

// Adds the operands of an aligned step of at most kMost sources. Because the
// operation is known at compile time, there are registers for more vectors than
// in ReduceStep, so fewer loads wait for others.
template <typename Type, int kMost, int kUnroll>
__device__ __noinline__ void Sum(const ReduceTask& task) {
  const DeviceStep& step = *task.step;
  const int sources = step.last - step.first;
  const uint32_t divisor = task.call->divisor;
  const auto bytes = static_cast<uint32_t>(step.bytes);
  const uint32_t size = task.vectors.size();
  for (uint32_t base = task.thread; base < size;
       base += task.threads * kUnroll) {
    uint32_t offset[kUnroll];
    uint4 values[kMost][kUnroll] = {};
    FindOffsets(task, base, size, bytes, offset);
#pragma unroll
    for (int s = 0; s < kMost; ++s) {
      if (s >= sources) break;
      const std::byte* source = SourceOf(task, step.first + s);
#pragma unroll
      for (int k = 0; k < kUnroll; ++k)
        if (offset[k] < bytes) values[s][k] = LoadSlot(source + offset[k]);
    }
#pragma unroll
    for (int k = 0; k < kUnroll; ++k) {
      if (offset[k] >= bytes) continue;
      ElementFold<Type> fold;
      fold.Begin(values[0][k]);
#pragma unroll
      for (int s = 1; s < kMost; ++s) {
        if (s >= sources) break;
        fold.Add(ReduceOp::kSum, values[s][k]);
      }
      const uint4 result = fold.Result(divisor);
      if (task.to != nullptr) StoreSlot(task.to + offset[k], result);
      if (task.to_slot != nullptr) StoreSlot(task.to_slot + offset[k], result);
    }
  }
}

template <typename Type, bool premultiplied>
__device__ __noinline__ void ReduceStep(const ReduceTask& task) {
  constexpr int kUnroll = ElementFold<Type>::kRegisterBytes <= 32 ? 2 : 1;

  const DeviceStep& step = *task.step;
  const ReduceOp op = task.call->reduce_op;
  const int self = task.call->self;
  const uint32_t divisor = task.call->divisor;
  const auto bytes = static_cast<uint32_t>(step.bytes);  // at most slot_bytes
  const uint32_t size = task.vectors.size();
  for (uint32_t base = task.thread; base < size;
       base += task.threads * kUnroll) {
    uint32_t offset[kUnroll];
    uint4 values[kSources][kUnroll] = {};
    ElementFold<Type> fold[kUnroll];
    FindOffsets(task, base, size, bytes, offset);
    for (int first = step.first; first < step.last; first += kSources) {
      LoadSources(task, step, first, self, bytes, offset, values);
      if constexpr (premultiplied)
        MultiplyOwn(
            self - first,
            [&](uint4 v) { return MultiplyAs<Type>(*task.call, v); }, values);
#pragma unroll
      for (int s = 0; s < kSources; ++s) {
        if (first + s >= step.last) break;
#pragma unroll
        for (int k = 0; k < kUnroll; ++k) {
          if (first + s == step.first)
            fold[k].Begin(values[s][k]);
          else
            fold[k].Add(op, values[s][k]);
        }
      }
    }
#pragma unroll
    for (int k = 0; k < kUnroll; ++k) {
      if (offset[k] >= bytes) continue;
      // The result for a single source is a copy of it. A fold would change its
      // NaNs.
      const uint4 result =
          step.last - step.first == 1 ? values[0][k] : fold[k].Result(divisor);
      StoreResult(task, offset[k], result, bytes - offset[k]);
    }
  }
}

// Reduces elements of the types that have no ReduceStep of their own.
template <bool premultiplied>
__device__ __noinline__ void ReduceStepOfAny(const ReduceTask& task) {
  constexpr int kUnroll = 2;

  const DeviceStep& step = *task.step;
  const int self = task.call->self;
  const auto bytes = static_cast<uint32_t>(step.bytes);
  const uint32_t size = task.vectors.size();
  for (uint32_t base = task.thread; base < size;
       base += task.threads * kUnroll) {
    uint32_t offset[kUnroll];
    Operands operands[kUnroll];
    uint4 result[kUnroll];
    FindOffsets(task, base, size, bytes, offset);
    for (int first = step.first; first < step.last; first += kSources) {
      uint4 values[kSources][kUnroll] = {};
      LoadSources(task, step, first, self, bytes, offset, values);
      if constexpr (premultiplied)
        MultiplyOwn(
            self - first, [&](uint4 v) { return Multiply(*task.call, v); },
            values);
#pragma unroll
      for (int k = 0; k < kUnroll; ++k) {
        for (int s = 0; s < kSources; ++s) operands[k].values[s] = values[s][k];
        operands[k].count = min(step.last - first, kSources);
        result[k] = FoldIn(*task.call, operands[k], first == step.first);
      }
    }
#pragma unroll
    for (int k = 0; k < kUnroll; ++k) {
      if (offset[k] >= bytes) continue;
      // The result for a single source is a copy of it. A fold would change its
      // NaNs.
      if (step.last - step.first == 1) result[k] = operands[k].values[0];
      StoreResult(task, offset[k], result[k], bytes - offset[k]);
    }
  }
}

// The last number of a Sum is how many vectors a thread loads at once from each
// source. It is the number of vectors of a slot that each thread of a block
// has: five with two ranks, and three with three or four ranks
// (kKernelRoundBytes).
template <typename Type, bool premultiplied>
__device__ __forceinline__ void ReduceAs(const ReduceTask& task) {
  const int sources = task.step->last - task.step->first;
  if (premultiplied || task.call->reduce_op != ReduceOp::kSum || sources == 1 ||
      sources > kSources || !IsAligned(task))
    ReduceStep<Type, premultiplied>(task);
  else if (sources == 2)
    Sum<Type, 2, 5>(task);
  else
    Sum<Type, kSources, 3>(task);
}

// The types of gradients have loops of their own. If all types had such loops,
// nvcc would need minutes for each architecture.
template <bool premultiplied = false>
__device__ __forceinline__ void Reduce(const ReduceTask& task) {
  switch (task.call->dtype) {
    case DType::kFloat32:
      return ReduceAs<Native<float>, premultiplied>(task);
    case DType::kBfloat16:
      return ReduceAs<NarrowFloat<cpu::Bfloat16>, premultiplied>(task);
    case DType::kFloat16:
      return ReduceAs<NarrowFloat<cpu::Float16>, premultiplied>(task);
    default:
      return ReduceStepOfAny<premultiplied>(task);
  }
}

}  // namespace jax_cxl::cuda

#endif  // JAX_CXL_ENGINE_CUDA_REDUCE_CUH_
