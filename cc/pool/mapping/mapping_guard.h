#ifndef JAX_CXL_POOL_MAPPING_MAPPING_GUARD_H_
#define JAX_CXL_POOL_MAPPING_MAPPING_GUARD_H_

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace jax_cxl::pool {

// Keeps the process alive if memory of a mapping is lost while it is in use.
// This happens if somebody cuts the file short, or if a memory module reports
// an uncorrectable error. The kernel then raises SIGBUS. The signal handler
// maps private memory in place of the lost memory, and from then on the mapping
// is not intact. Users of the mapping check `intact()` before they trust data
// that they have read, and before they tell other processes of data that they
// have written.
//
// The first guard installs the handler, which stays installed. For faults
// outside of guarded mappings, it calls the handler that was installed before,
// or restores the default action.
//
// intact() and Lose() are thread-safe.
class MappingGuard {
 public:
  // Guards [begin, begin + bytes). Lost memory is replaced in whole units of
  // `unit` bytes, which is the page size or the alignment of the device.
  MappingGuard(std::byte* begin, uint64_t bytes, uint64_t unit);
  ~MappingGuard();  // call it before the range is unmapped
  MappingGuard(const MappingGuard&) = delete;
  MappingGuard& operator=(const MappingGuard&) = delete;

  // Replaces the whole mapping with private zeros. The mapping is not intact
  // from then on, and stores of this process reach no other process.
  void Abandon();

  // Marks the mapping as not intact. Its user has found out that memory is
  // lost.
  void Lose() { range_->lost = true; }

  bool intact() const { return !range_->lost.load(std::memory_order_relaxed); }

  // What the handler has to know about a guarded range. These objects are
  // reused but never freed, because the handler may read them at any time.
  struct Range {
    std::atomic<uintptr_t> begin{0};
    std::atomic<uintptr_t> end{0};  // 0: not in use
    std::atomic<uintptr_t> unit{0};
    std::atomic<bool> lost{false};
    Range* next = nullptr;
  };

 private:
  Range* range_;
};

}  // namespace jax_cxl::pool

#endif  // JAX_CXL_POOL_MAPPING_MAPPING_GUARD_H_
