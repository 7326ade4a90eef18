#ifndef JAX_CXL_ENGINE_CUDA_ELEMENT_TYPES_CUH_
#define JAX_CXL_ENGINE_CUDA_ELEMENT_TYPES_CUH_

#include <cstdint>

#include "cc/base/dtype.h"
#include "cc/engine/kernels/float_formats.h"
#include "cc/engine/kernels/reduce_complex.h"
#include "cc/engine/kernels/reduce_loops.h"
#include "cc/engine/kernels/reduce_operations.h"

// Each of these types describes how elements of a dtype are widened, folded and
// narrowed. The types use the functions of the CPU engine, and give the same
// bits (the contract is in cc/engine/kernels/kernels.h).
namespace jax_cxl::cuda {

struct ApplyReduction {
  template <typename Reduction, typename T>
  JAX_CXL_INLINE T operator()(T a, T b) const {
    using Folded = cpu::FoldedAs<T, Reduction>;
    return static_cast<T>(
        Reduction::Apply(static_cast<Folded>(a), static_cast<Folded>(b)));
  }
};

template <typename T>
__device__ __forceinline__ T Apply(ReduceOp op, T a, T b) {
  return cpu::WithReduction<T>(op, ApplyReduction(), a, b);
}

// What elements that are folded as `T` have in common.
template <typename T>
struct FoldedIn {
  using Wide = T;
  __device__ static Wide Divide(Wide v, uint32_t by) {
    return v / static_cast<Wide>(by);
  }
  __device__ static Wide Apply(ReduceOp op, Wide a, Wide b) {
    return cuda::Apply(op, a, b);
  }
};

// Integers, float32 and float64.
template <typename T>
struct Native : FoldedIn<T> {
  using Storage = T;
  __device__ static T Widen(T v) { return v; }
  __device__ static T Narrow(T v) { return cpu::OneNan(v); }
};

// Elements that are folded in float32 and rounded once.
template <typename Format>
struct NarrowFloat : FoldedIn<float> {
  using Storage = typename Format::Storage;
  __device__ static float Widen(Storage v) { return Format::Widen(v); }
  __device__ static Storage Narrow(float v) {
    return Format::Narrow(cpu::OneNan(v));
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
    return cpu::IsAny(op) ? a | b : a & b;
  }
};

// Elements that are biased exponents. Only min and max apply to them.
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

// Calls visit.operator()<Type>() with the type of the elements.
template <typename Visit>
__device__ __forceinline__ auto WithElementType(DType dtype,
                                                const Visit& visit) {
  switch (dtype) {
    case DType::kBool:
      return visit.template operator()<Boolean>();
#define JAX_CXL_CASE(name, type) \
  case DType::k##name:           \
    return visit.template operator()<Native<type>>();
      JAX_CXL_NATIVE_DTYPES(JAX_CXL_CASE)
#undef JAX_CXL_CASE
#define JAX_CXL_CASE(format) \
  case DType::k##format:     \
    return visit.template operator()<NarrowFloat<cpu::format>>();
      JAX_CXL_SMALL_FLOATS(JAX_CXL_CASE)
#undef JAX_CXL_CASE
    case DType::kComplex64:
      return visit.template operator()<ComplexFloat<float>>();
    case DType::kComplex128:
      return visit.template operator()<ComplexFloat<double>>();
    case DType::kFloat8E8M0Fnu:
      break;
  }
  return visit.template operator()<E8M0>();
}

// Folds operands of type `Raw`. Each operand contains several elements, and has
// at most 16 bytes.
template <typename Type, typename Raw = uint4>
class ElementFold {
 public:
  static constexpr int kElements = sizeof(Raw) / sizeof(typename Type::Storage);
  static constexpr int kRegisterBytes = kElements * sizeof(typename Type::Wide);

  __device__ void Begin(Raw operand) {
    const Vector vector(operand);
#pragma unroll
    for (int e = 0; e < kElements; ++e)
      fold_[e] = Type::Widen(vector.elements[e]);
  }

  __device__ void Add(ReduceOp op, Raw operand) {
    const Vector vector(operand);
#pragma unroll
    for (int e = 0; e < kElements; ++e)
      fold_[e] = Type::Apply(op, fold_[e], Type::Widen(vector.elements[e]));
  }

  // Returns the result of the fold, divided by `divisor` unless that is 0. Only
  // numbers that are not complex can be divided.
  __device__ Raw Result(uint32_t divisor = 0) const {
    Vector result;
#pragma unroll
    for (int e = 0; e < kElements; ++e) {
      typename Type::Wide value = fold_[e];
      if constexpr (requires { Type::Divide(value, divisor); })
        if (divisor != 0) value = Type::Divide(value, divisor);
      result.elements[e] = Type::Narrow(value);
    }
    return result.raw;
  }

 private:
  union Vector {
    Raw raw;
    typename Type::Storage elements[kElements];
    __device__ Vector() {}
    __device__ explicit Vector(Raw v) : raw(v) {}
  };

  typename Type::Wide fold_[kElements];
};

}  // namespace jax_cxl::cuda

#endif  // JAX_CXL_ENGINE_CUDA_ELEMENT_TYPES_CUH_
