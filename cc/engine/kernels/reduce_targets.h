#ifndef JAX_CXL_ENGINE_KERNELS_REDUCE_TARGETS_H_
#define JAX_CXL_ENGINE_KERNELS_REDUCE_TARGETS_H_

#if defined(__x86_64__)
#include <cpuid.h>
#endif

// Each loop is compiled for several instruction sets, and the program chooses
// one at run time. The attribute `target_clones` would do this in one line, but
// it does not work on templates, and it needs ifunc, which static links and
// sanitizers lack. So each loop is an always-inline function, and there is a
// wrapper for each instruction set into which the compiler inlines it.

#if defined(__CUDACC__)
// The CUDA engine compiles the same functions for hosts and devices.
#define JAX_CXL_INLINE __host__ __device__ __forceinline__
#else
#define JAX_CXL_INLINE inline __attribute__((always_inline))
#endif

// Tells the compiler that no iteration of the next loop depends on another. The
// compiler cannot prove this, because the destination may be one of the
// sources.
#if defined(__clang__)
#define JAX_CXL_INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define JAX_CXL_INDEPENDENT _Pragma("GCC ivdep")
#endif

#if !defined(__CUDACC__)
namespace jax_cxl::cpu {

#if defined(__x86_64__)

inline bool HasAvx2() {
  static const bool has = [] {
    unsigned eax, ebx, ecx, edx;
    // Look for f16c by cpuid, because some compilers' __builtin_cpu_supports
    // does not know it.
    return __builtin_cpu_supports("avx2") &&
           __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
  }();
  return has;
}

inline bool HasAvx512() {
  static const bool has = HasAvx2() && __builtin_cpu_supports("avx512f") &&
                          __builtin_cpu_supports("avx512bw") &&
                          __builtin_cpu_supports("avx512dq") &&
                          __builtin_cpu_supports("avx512vl");
  return has;
}

#define JAX_CXL_TARGET_AVX2 __attribute__((target("avx2,f16c")))
#define JAX_CXL_TARGET_AVX512 \
  __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,f16c")))

template <typename Loop, typename... Args>
JAX_CXL_TARGET_AVX2 void RunAvx2(Args... args) {
  Loop::Run(args...);
}

template <typename Loop, typename... Args>
JAX_CXL_TARGET_AVX512 void RunAvx512(Args... args) {
  Loop::Run(args...);
}

#endif

template <typename Loop, typename... Args>
void RunBaseline(Args... args) {
  Loop::Run(args...);
}

// Returns the wrapper of Loop::Run(Args...) that suits this machine. Use it for
// loops whose speed is limited by memory: vectors wider than AVX2's do not
// speed them up.
template <typename Loop, typename... Args>
auto Pick() -> void (*)(Args...) {
#if defined(__x86_64__)
  if (HasAvx2()) return &RunAvx2<Loop, Args...>;
#endif
  return &RunBaseline<Loop, Args...>;
}

// Like Pick, but for loops whose speed is limited by arithmetic. AVX-512
// doubles the speed of conversions.
template <typename Loop, typename... Args>
auto PickWidest() -> void (*)(Args...) {
#if defined(__x86_64__)
  if (HasAvx512()) return &RunAvx512<Loop, Args...>;
#endif
  return Pick<Loop, Args...>();
}

}  // namespace jax_cxl::cpu
#endif  // !defined(__CUDACC__)

#endif  // JAX_CXL_ENGINE_KERNELS_REDUCE_TARGETS_H_
