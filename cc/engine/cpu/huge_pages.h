#ifndef JAX_CXL_ENGINE_CPU_HUGE_PAGES_H_
#define JAX_CXL_ENGINE_CPU_HUGE_PAGES_H_

#include <sys/mman.h>

#include <cstdint>

#include "cc/pool/layout/geometry.h"

namespace jax_cxl::cpu {

// The size of a huge page on x86-64, and on ARM with pages of 4 KiB. If huge
// pages are larger, Linux uses only those that lie completely inside the range
// that madvise gets.
inline constexpr uintptr_t kHugePageBytes = uintptr_t{2} << 20;

// Asks Linux to back a large output with huge pages. XLA allocates new memory
// for large outputs, so each call touches pages for the first time. With pages
// of 4 KiB, these page faults take longer than the copies into the output.
//
// Does nothing if the output contains no whole huge page, or if Linux has no
// huge pages. The bytes and their addresses stay as they are.
inline void PreferHugePages(void* output, uint64_t bytes) {
  const auto at = reinterpret_cast<uintptr_t>(output);
  const uintptr_t begin = pool::RoundUp(at, kHugePageBytes);
  const uintptr_t end = (at + bytes) / kHugePageBytes * kHugePageBytes;
  if (begin >= end) return;
  // Fails if Linux is built without huge pages.
  (void)madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
}

}  // namespace jax_cxl::cpu

#endif  // JAX_CXL_ENGINE_CPU_HUGE_PAGES_H_
