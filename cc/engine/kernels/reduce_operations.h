#ifndef JAX_CXL_ENGINE_KERNELS_REDUCE_OPERATIONS_H_
#define JAX_CXL_ENGINE_KERNELS_REDUCE_OPERATIONS_H_

#include <cstdint>
#include <type_traits>

#include "cc/base/dtype.h"
#include "cc/engine/kernels/reduce_targets.h"

// The reductions of two elements, which the CPU engine and the CUDA engine
// share. `a` is the fold so far, and `b` is the next operand.
namespace jax_cxl::cpu {

struct Sum {
  template <typename T>
  JAX_CXL_INLINE static T Apply(T a, T b) {
    return static_cast<T>(a + b);
  }
};

struct Prod {
  template <typename T>
  JAX_CXL_INLINE static T Apply(T a, T b) {
    if constexpr (std::is_same_v<T, uint16_t>) {
      // C++ would promote uint16_t to int, and the product of two ints can
      // overflow.
      return static_cast<T>(uint32_t{a} * b);
    } else {
      return static_cast<T>(a * b);
    }
  }
};

// The smaller operand. It is the first operand if both are equal (+0 equals
// -0), and NaN if either operand is NaN.
struct Min {
  template <typename T>
  JAX_CXL_INLINE static T Apply(T a, T b) {
    if constexpr (std::is_floating_point_v<T>) {
      const T smaller = b < a ? b : a;
      return b != b ? b : smaller;
    } else {
      return b < a ? b : a;
    }
  }
};

struct Max {
  template <typename T>
  JAX_CXL_INLINE static T Apply(T a, T b) {
    if constexpr (std::is_floating_point_v<T>) {
      const T larger = b > a ? b : a;
      return b != b ? b : larger;
    } else {
      return b > a ? b : a;
    }
  }
};

struct And {
  template <typename T>
  JAX_CXL_INLINE static T Apply(T a, T b) {
    return static_cast<T>(a & b);
  }
};

struct Or {
  template <typename T>
  JAX_CXL_INLINE static T Apply(T a, T b) {
    return static_cast<T>(a | b);
  }
};

// The minimum of float8_e8m0fnu. A code of this type is a biased exponent, so
// values have the same order as their codes. Code 255 is NaN.
struct MinE8M0 {
  JAX_CXL_INLINE static uint8_t Apply(uint8_t a, uint8_t b) {
    const uint8_t smaller = b < a ? b : a;
    const uint8_t larger = b < a ? a : b;
    return larger == 255 ? larger : smaller;
  }
};

// Calls visit.operator()<Reduction>(arguments...), where Reduction is the
// struct above that computes `op`. Returns the result of that call. Elements
// are folded as T. Precondition: the elements' dtype has `op` (kernels.h).
template <typename T, typename Visit, typename... Arguments>
JAX_CXL_INLINE auto WithReduction(ReduceOp op, const Visit& visit,
                                  Arguments&&... arguments) {
  switch (op) {
    case ReduceOp::kSum:
      return visit.template operator()<Sum>(arguments...);
    case ReduceOp::kProd:
      return visit.template operator()<Prod>(arguments...);
    case ReduceOp::kMin:
      return visit.template operator()<Min>(arguments...);
    case ReduceOp::kAnd:
      if constexpr (std::is_integral_v<T>)
        return visit.template operator()<And>(arguments...);
      break;
    case ReduceOp::kOr:
      if constexpr (std::is_integral_v<T>)
        return visit.template operator()<Or>(arguments...);
      break;
    case ReduceOp::kMax:
      break;
  }
  return visit.template operator()<Max>(arguments...);
}

// The type in which a reduction of elements of type T computes. Sums, products
// and bit operations of signed integers are computed with unsigned integers,
// because these wrap around.
template <typename T, typename Reduction>
using FoldedAs = typename std::conditional_t<
    std::is_integral_v<T> && !std::is_same_v<Reduction, Min> &&
        !std::is_same_v<Reduction, Max>,
    std::make_unsigned<T>, std::type_identity<T>>::type;

// Returns true if `op` on bools means "any operand is true". Otherwise, `op`
// means "all operands are true".
JAX_CXL_INLINE bool IsAny(ReduceOp op) {
  return op == ReduceOp::kSum || op == ReduceOp::kMax || op == ReduceOp::kOr;
}

}  // namespace jax_cxl::cpu

#endif  // JAX_CXL_ENGINE_KERNELS_REDUCE_OPERATIONS_H_
