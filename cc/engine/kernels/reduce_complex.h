#ifndef JAX_CXL_ENGINE_KERNELS_REDUCE_COMPLEX_H_
#define JAX_CXL_ENGINE_KERNELS_REDUCE_COMPLEX_H_

#include "cc/engine/kernels/reduce_loops.h"

// Complex products. Complex sums need no code of their own: they are sums of
// twice as many real numbers.
namespace jax_cxl::cpu {

// Returns a * b, in a way that no compiler fuses with the addition after it. A
// fused multiply-add rounds once instead of twice, so the result would depend
// on the machine. Only complex products need this: no other reduction adds
// products.
template <typename T>
JAX_CXL_INLINE T RoundedProduct(T a, T b) {
#if defined(__CUDACC__)
  return a * b;  // compiled with --fmad=false
#elif defined(__clang__)
#pragma clang fp contract(off)
  return a * b;
#else
  return __builtin_assoc_barrier(a * b);
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

// The textbook formula for a complex product, which XLA uses too. Unlike C's
// complex multiplication, it does not correct results with infinities.
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
