#ifndef JAX_CXL_ENGINE_CPU_REDUCE_TARGETS_H_
#define JAX_CXL_ENGINE_CPU_REDUCE_TARGETS_H_

#include <utility>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

// One loop, compiled for several instruction sets, chosen when the program
// runs. `target_clones` would do it in one line, but neither on templates nor
// without ifunc (static links, sanitizers), so the loops are always-inline
// bodies that a wrapper per instruction set takes in.

#define JAX_CXL_INLINE inline __attribute__((always_inline))

// Says that no iteration depends on another one, which the compiler cannot see
// where the destination is one of the sources.
#if defined(__clang__)
#define JAX_CXL_INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define JAX_CXL_INDEPENDENT _Pragma("GCC ivdep")
#endif

namespace jax_cxl::cpu {

#if defined(__x86_64__)

inline bool HasAvx2() {
  static const bool has = [] {
    unsigned eax, ebx, ecx, edx;
    // By cpuid, since not every compiler's __builtin_cpu_supports knows f16c.
    return __builtin_cpu_supports("avx2") &&
           __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
  }();
  return has;
}

#define JAX_CXL_TARGET_AVX2 __attribute__((target("avx2,f16c")))

template <typename Loop, typename... Args>
JAX_CXL_TARGET_AVX2 void RunAvx2(Args... args) {
  Loop::Run(args...);
}

#else

inline bool HasAvx2() { return false; }

#endif

template <typename Loop, typename... Args>
void RunBaseline(Args... args) {
  Loop::Run(args...);
}

// The best wrapper of Loop::Run(Args...) that this machine can execute.
template <typename Loop, typename... Args>
auto Pick() -> void (*)(Args...) {
#if defined(__x86_64__)
  if (HasAvx2()) return &RunAvx2<Loop, Args...>;
#endif
  return &RunBaseline<Loop, Args...>;
}

}  // namespace jax_cxl::cpu

#endif  // JAX_CXL_ENGINE_CPU_REDUCE_TARGETS_H_
