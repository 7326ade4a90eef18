#ifndef JAX_CXL_ENGINE_KERNELS_REDUCE_FLOAT16_H_
#define JAX_CXL_ENGINE_KERNELS_REDUCE_FLOAT16_H_

#include "cc/engine/kernels/reduce_loops.h"

// Conversions of float16 by the processor's instructions. They give the same
// bits as Float16 (float_formats.h).
#if defined(__x86_64__)

#include <immintrin.h>

namespace jax_cxl::cpu {

JAX_CXL_TARGET_AVX2 inline void WidenFloat16(const std::byte* from,
                                             std::byte* to, size_t count) {
  size_t i = 0;
  for (; i + 8 <= count; i += 8) {
    const __m128i codes =
        _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + 2 * i));
    _mm256_storeu_ps(reinterpret_cast<float*>(to + 4 * i),
                     _mm256_cvtph_ps(codes));
  }
  WidenLoop<Float16>::Run(from + 2 * i, to + 4 * i, count - i);
}

JAX_CXL_TARGET_AVX2 inline void NarrowFloat16(const std::byte* from,
                                              std::byte* to, size_t count) {
  size_t i = 0;
  for (; i + 8 <= count; i += 8) {
    const __m256 values =
        _mm256_loadu_ps(reinterpret_cast<const float*>(from + 4 * i));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to + 2 * i),
                     _mm256_cvtps_ph(values, _MM_FROUND_TO_NEAREST_INT));
  }
  NarrowLoop<Float16>::Run(from + 4 * i, to + 2 * i, count - i);
}

}  // namespace jax_cxl::cpu

#endif  // defined(__x86_64__)

#endif  // JAX_CXL_ENGINE_KERNELS_REDUCE_FLOAT16_H_
