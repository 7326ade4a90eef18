#include "cc/engine/cpu/huge_pages.h"

#include <sys/mman.h>

namespace jax_cxl::cpu {
namespace {

// The size on x86-64, and on ARM with pages of 4 KiB. Where huge pages are
// larger, Linux rounds the range.
constexpr uintptr_t kHugePageBytes = uintptr_t{2} << 20;

}  // namespace

void PreferHugePages(void* output, uint64_t bytes) {
  const auto at = reinterpret_cast<uintptr_t>(output);
  const uintptr_t begin =
      (at + kHugePageBytes - 1) / kHugePageBytes * kHugePageBytes;
  const uintptr_t end = (at + bytes) / kHugePageBytes * kHugePageBytes;
  if (begin >= end) return;
  // Fails where Linux is built without huge pages.
  (void)madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
}

}  // namespace jax_cxl::cpu
