#ifndef JAX_CXL_BASE_TICKS_H_
#define JAX_CXL_BASE_TICKS_H_

#include <cstdint>

#if defined(__x86_64__)
#include <x86intrin.h>
#elif !defined(__aarch64__)
#include <chrono>
#endif

namespace jax_cxl {

// The processor's own counter: a third of the price of a clock, and of a rate
// that two readings beside a clock's tell. Never 0.
inline uint64_t Ticks() {
#if defined(__x86_64__)
  return __rdtsc() | 1;
#elif defined(__aarch64__)
  uint64_t ticks;
  asm volatile("mrs %0, cntvct_el0" : "=r"(ticks));
  return ticks | 1;
#else
  return std::chrono::steady_clock::now().time_since_epoch().count() | 1;
#endif
}

}  // namespace jax_cxl

#endif  // JAX_CXL_BASE_TICKS_H_
