#include "cc/engine/kernels/copy.h"

#include <algorithm>
#include <cstdint>

#include "cc/engine/kernels/reduce_targets.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace jax_cxl::cpu {

#if defined(__x86_64__)
namespace {

constexpr size_t kLine = 64;

// Copies with stores that bypass the caches. `to` must be aligned to cache
// lines, and `bytes` must be a multiple of two cache lines.
JAX_CXL_TARGET_AVX2 void StreamLines(std::byte* to, const std::byte* from,
                                     size_t bytes) {
  for (size_t i = 0; i < bytes; i += 2 * kLine) {
    const auto* source = reinterpret_cast<const __m256i*>(from + i);
    auto* target = reinterpret_cast<__m256i*>(to + i);
    const __m256i a = _mm256_loadu_si256(source);
    const __m256i b = _mm256_loadu_si256(source + 1);
    const __m256i c = _mm256_loadu_si256(source + 2);
    const __m256i d = _mm256_loadu_si256(source + 3);
    _mm256_stream_si256(target, a);
    _mm256_stream_si256(target + 1, b);
    _mm256_stream_si256(target + 2, c);
    _mm256_stream_si256(target + 3, d);
  }
  // Orders the streaming stores before later stores that publish the bytes.
  _mm_sfence();
}

}  // namespace
#endif

void CopyPastCaches(std::byte* to, const std::byte* from, size_t bytes) {
#if defined(__x86_64__)
  if (HasAvx2()) {
    const size_t head =
        std::min(bytes, -reinterpret_cast<uintptr_t>(to) % kLine);
    const size_t body = (bytes - head) / (2 * kLine) * (2 * kLine);
    CopyBytes(to, from, head);
    StreamLines(to + head, from + head, body);
    to += head + body;
    from += head + body;
    bytes -= head + body;
  }
#endif
  CopyBytes(to, from, bytes);
}

}  // namespace jax_cxl::cpu
