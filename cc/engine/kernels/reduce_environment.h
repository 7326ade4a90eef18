#ifndef JAX_CXL_ENGINE_KERNELS_REDUCE_ENVIRONMENT_H_
#define JAX_CXL_ENGINE_KERNELS_REDUCE_ENVIRONMENT_H_

#if defined(__x86_64__)
#include <xmmintrin.h>
#else
#include <cfenv>
#endif

namespace jax_cxl::cpu {

// Sets default floating-point arithmetic while the object lives. XLA's threads
// flush subnormals to zero, so otherwise the bits of a result would depend on
// the thread that computed it.
class DefaultFloatEnvironment {
 public:
  DefaultFloatEnvironment(const DefaultFloatEnvironment&) = delete;
  DefaultFloatEnvironment& operator=(const DefaultFloatEnvironment&) = delete;

#if defined(__x86_64__)
  // All exceptions masked, round to nearest, subnormals kept.
  DefaultFloatEnvironment() : saved_(_mm_getcsr()) { _mm_setcsr(0x1f80); }
  ~DefaultFloatEnvironment() { _mm_setcsr(saved_); }

 private:
  unsigned saved_;
#else
  DefaultFloatEnvironment() {
    std::fegetenv(&saved_);
    std::fesetenv(FE_DFL_ENV);
  }
  ~DefaultFloatEnvironment() { std::fesetenv(&saved_); }

 private:
  std::fenv_t saved_;
#endif
};

}  // namespace jax_cxl::cpu

#endif  // JAX_CXL_ENGINE_KERNELS_REDUCE_ENVIRONMENT_H_
