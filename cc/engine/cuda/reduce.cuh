#ifndef JAX_CXL_ENGINE_CUDA_REDUCE_CUH_
#define JAX_CXL_ENGINE_CUDA_REDUCE_CUH_

#include <cstdint>
#include <type_traits>

#include "cc/base/dtype.h"
#include "cc/engine/cpu/float_formats.h"
#include "cc/engine/cpu/reduce_complex.h"
#include "cc/engine/cpu/reduce_loops.h"
#include "cc/engine/cuda/device_call.h"
#include "cc/engine/cuda/device_memory.cuh"
#include "cc/engine/cuda/stripes.cuh"

// Reductions straight from the peers' slots, with the functions and hence the
// bits of the CPU engine (the contract is in cc/engine/cpu/kernels.h).
namespace jax_cxl::cuda {

// --- element types: how 16 bytes are widened, folded and narrowed ---

// Integers add and multiply as unsigned numbers, which wrap around, and compare
// as what they are.
template <typename T>
struct Integer {
  using Storage = T;
  using Wide = T;
  using Unsigned = std::make_unsigned_t<T>;
  __device__ static Wide Widen(Storage v) { return v; }
  __device__ static Storage Narrow(Wide v) { return v; }
  __device__ static Wide Apply(ReduceOp op, Wide a, Wide b) {
    const auto x = static_cast<uint64_t>(static_cast<Unsigned>(a));
    const auto y = static_cast<uint64_t>(static_cast<Unsigned>(b));
    switch (op) {
      case ReduceOp::kSum:
        return static_cast<T>(x + y);
      case ReduceOp::kProd:
        return static_cast<T>(x * y);
      case ReduceOp::kMin:
        return cpu::Min::Apply(a, b);
      default:
        return cpu::Max::Apply(a, b);
    }
  }
};

template <typename T>
__device__ __forceinline__ T ApplyFloat(ReduceOp op, T a, T b) {
  switch (op) {
    case ReduceOp::kSum:
      return a + b;
    case ReduceOp::kProd:
      return a * b;
    case ReduceOp::kMin:
      return cpu::Min::Apply(a, b);
    default:
      return cpu::Max::Apply(a, b);
  }
}

template <typename T>
struct Float {
  using Storage = T;
  using Wide = T;
  __device__ static Wide Widen(Storage v) { return v; }
  __device__ static Storage Narrow(Wide v) { return cpu::OneNan(v); }
  __device__ static Wide Apply(ReduceOp op, Wide a, Wide b) {
    return ApplyFloat(op, a, b);
  }
};

// Folded in float32, rounded once.
template <typename Format>
struct NarrowFloat {
  using Storage = typename Format::Storage;
  using Wide = float;
  __device__ static Wide Widen(Storage v) { return Format::Widen(v); }
  __device__ static Storage Narrow(Wide v) {
    return Format::Narrow(cpu::OneNan(v));
  }
  __device__ static Wide Apply(ReduceOp op, Wide a, Wide b) {
    return ApplyFloat(op, a, b);
  }
};

template <typename T>
struct ComplexFloat {
  using Storage = cpu::Complex<T>;
  using Wide = cpu::Complex<T>;
  __device__ static Wide Widen(Storage v) { return v; }
  __device__ static Storage Narrow(Wide v) {
    return {cpu::OneNan(v.re), cpu::OneNan(v.im)};
  }
  __device__ static Wide Apply(ReduceOp op, Wide a, Wide b) {
    if (op == ReduceOp::kSum) return {a.re + b.re, a.im + b.im};
    return cpu::ComplexProd::Apply(a, b);
  }
};

struct Boolean {
  using Storage = uint8_t;
  using Wide = uint8_t;
  __device__ static Wide Widen(Storage v) { return cpu::Bool::Widen(v); }
  __device__ static Storage Narrow(Wide v) { return v; }
  __device__ static Wide Apply(ReduceOp op, Wide a, Wide b) {
    return op == ReduceOp::kSum || op == ReduceOp::kMax ? a | b : a & b;
  }
};

// A biased exponent, with min and max only.
struct E8M0 {
  using Storage = uint8_t;
  using Wide = uint8_t;
  __device__ static Wide Widen(Storage v) { return v; }
  __device__ static Storage Narrow(Wide v) { return v; }
  __device__ static Wide Apply(ReduceOp op, Wide a, Wide b) {
    return op == ReduceOp::kMin ? cpu::MinE8M0::Apply(a, b)
                                : cpu::Max::Apply(a, b);
  }
};

// --- one step ---

struct ReduceTask {
  const DeviceCall* call;
  const DeviceStep* step;
  StripeVectors vectors;
  uint32_t slot;       // of the sources
  std::byte* to;       // null: the result does not go to the output
  std::byte* to_slot;  // null: it does not go to my slot
  uint32_t thread;
  uint32_t threads;
  // Where the peers' operands are instead of in their slots, one after another;
  // null: in their slots.
  const std::byte* staging = nullptr;
};

// What one operand takes in staging memory.
__host__ __device__ constexpr uint64_t StagedBytes(uint64_t bytes) {
  return (bytes + 127) / 128 * 128;
}

// Where a member's operands start.
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

template <typename Type>
__device__ __noinline__ void ReduceStep(const ReduceTask& task) {
  using Storage = typename Type::Storage;
  using Wide = typename Type::Wide;
  constexpr int kElements = 16 / sizeof(Storage);
  // As many loads in flight as accumulators fit in registers.
  constexpr int kUnroll = kElements * sizeof(Wide) <= 32 ? 4 : 2;
  union Vector {
    uint4 raw;
    Storage elements[kElements];
    __device__ Vector() {}
  };

  const DeviceStep& step = *task.step;
  const ReduceOp op = task.call->reduce_op;
  const int self = task.call->self;
  const auto bytes = static_cast<uint32_t>(step.bytes);  // at most a slot's
  const uint32_t size = task.vectors.size();
  for (uint32_t base = task.thread; base < size;
       base += task.threads * kUnroll) {
    uint32_t offset[kUnroll];
    Vector next[kUnroll];
    Wide fold[kUnroll][kElements];
    auto load = [&](int member) {
      const std::byte* source = SourceOf(task, member);
#pragma unroll
      for (int k = 0; k < kUnroll; ++k) {
        if (offset[k] >= bytes) continue;
        next[k].raw = member == self
                          ? LoadLocal(source + offset[k], bytes - offset[k])
                          : LoadSlot(source + offset[k]);
      }
    };
#pragma unroll
    for (int k = 0; k < kUnroll; ++k) {
      const uint32_t i = base + k * task.threads;
      offset[k] =
          i < size ? static_cast<uint32_t>(task.vectors.Offset(i)) : bytes;
    }
    load(step.first);
#pragma unroll
    for (int k = 0; k < kUnroll; ++k)
#pragma unroll
      for (int e = 0; e < kElements; ++e)
        fold[k][e] = Type::Widen(next[k].elements[e]);
    for (int member = step.first + 1; member < step.last; ++member) {
      load(member);
#pragma unroll
      for (int k = 0; k < kUnroll; ++k)
#pragma unroll
        for (int e = 0; e < kElements; ++e)
          fold[k][e] =
              Type::Apply(op, fold[k][e], Type::Widen(next[k].elements[e]));
    }
#pragma unroll
    for (int k = 0; k < kUnroll; ++k) {
      if (offset[k] >= bytes) continue;
      Vector result;
#pragma unroll
      for (int e = 0; e < kElements; ++e)
        result.elements[e] = Type::Narrow(fold[k][e]);
      // A single source is copied, NaNs and all.
      if (step.last - step.first == 1) result.raw = next[k].raw;
      if (task.to != nullptr)
        StoreLocal(task.to + offset[k], result.raw, bytes - offset[k]);
      if (task.to_slot != nullptr)
        StoreSlot(task.to_slot + offset[k], result.raw);
    }
  }
}

__device__ __forceinline__ void Reduce(const ReduceTask& task) {
  switch (task.call->dtype) {
    case DType::kBool:
      return ReduceStep<Boolean>(task);
    case DType::kInt8:
      return ReduceStep<Integer<int8_t>>(task);
    case DType::kInt16:
      return ReduceStep<Integer<int16_t>>(task);
    case DType::kInt32:
      return ReduceStep<Integer<int32_t>>(task);
    case DType::kInt64:
      return ReduceStep<Integer<int64_t>>(task);
    case DType::kUint8:
      return ReduceStep<Integer<uint8_t>>(task);
    case DType::kUint16:
      return ReduceStep<Integer<uint16_t>>(task);
    case DType::kUint32:
      return ReduceStep<Integer<uint32_t>>(task);
    case DType::kUint64:
      return ReduceStep<Integer<uint64_t>>(task);
    case DType::kFloat16:
      return ReduceStep<NarrowFloat<cpu::Float16>>(task);
    case DType::kBfloat16:
      return ReduceStep<NarrowFloat<cpu::Bfloat16>>(task);
    case DType::kFloat32:
      return ReduceStep<Float<float>>(task);
    case DType::kFloat64:
      return ReduceStep<Float<double>>(task);
    case DType::kComplex64:
      return ReduceStep<ComplexFloat<float>>(task);
    case DType::kComplex128:
      return ReduceStep<ComplexFloat<double>>(task);
    case DType::kFloat8E4M3Fn:
      return ReduceStep<NarrowFloat<cpu::Float8E4M3Fn>>(task);
    case DType::kFloat8E5M2:
      return ReduceStep<NarrowFloat<cpu::Float8E5M2>>(task);
    case DType::kFloat8E4M3B11Fnuz:
      return ReduceStep<NarrowFloat<cpu::Float8E4M3B11Fnuz>>(task);
    case DType::kFloat8E4M3Fnuz:
      return ReduceStep<NarrowFloat<cpu::Float8E4M3Fnuz>>(task);
    case DType::kFloat8E5M2Fnuz:
      return ReduceStep<NarrowFloat<cpu::Float8E5M2Fnuz>>(task);
    case DType::kFloat8E4M3:
      return ReduceStep<NarrowFloat<cpu::Float8E4M3>>(task);
    case DType::kFloat8E3M4:
      return ReduceStep<NarrowFloat<cpu::Float8E3M4>>(task);
    case DType::kFloat8E8M0Fnu:
      return ReduceStep<E8M0>(task);
  }
}

}  // namespace jax_cxl::cuda

#endif  // JAX_CXL_ENGINE_CUDA_REDUCE_CUH_
