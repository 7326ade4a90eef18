#ifndef JAX_CXL_ENGINE_KERNELS_REDUCE_COMPLEX_H_
#define JAX_CXL_ENGINE_KERNELS_REDUCE_COMPLEX_H_

#include "cc/engine/kernels/reduce_loops.h"

#if !defined(__has_builtin)
#define __has_builtin(name) 0
#endif

// Complex products. A complex sum is a sum of twice as many real numbers.
namespace jax_cxl::cpu {

// A product that no compiler fuses with the addition after it. A fused
// multiply-add rounds once instead of twice, so the result would depend on the
// machine. No other operation here multiplies and then adds inexactly.
template <typename T>
JAX_CXL_INLINE T RoundedProduct(T a, T b) {
#if defined(__CUDACC__)
  return a * b;  // compiled with --fmad=false
#elif defined(__clang__)
#pragma clang fp contract(off)
  return a * b;
#elif __has_builtin(__builtin_assoc_barrier)
  return __builtin_assoc_barrier(a * b);
#else
  volatile T product = a * b;
  return product;
#endif
}

template <typename T>
struct Complex {
  T re;
  T im;
};

template <typename T>
JAX_CXL_INLINE Complex<T> OneNan(Complex<T> value) {
  return {OneNan(value.re), OneNan(value.im)};
}

// The textbook formula, which XLA uses too. It does not correct infinities as
// C's complex multiplication does.
struct ComplexProd {
  template <typename T>
  JAX_CXL_INLINE static Complex<T> Apply(Complex<T> a, Complex<T> b) {
#if defined(__clang__)
#pragma clang fp contract(off)
#endif
    return {RoundedProduct(a.re, b.re) - RoundedProduct(a.im, b.im),
            RoundedProduct(a.re, b.im) + RoundedProduct(a.im, b.re)};
  }
};

}  // namespace jax_cxl::cpu

#endif  // JAX_CXL_ENGINE_KERNELS_REDUCE_COMPLEX_H_
