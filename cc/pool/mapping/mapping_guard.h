#ifndef JAX_CXL_POOL_MAPPING_MAPPING_GUARD_H_
#define JAX_CXL_POOL_MAPPING_MAPPING_GUARD_H_

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace jax_cxl::pool {

// Keeps the process alive when memory behind a mapping goes away while it is in
// use: somebody cuts the file short, or a memory module reports an error that
// it cannot correct. The kernel raises SIGBUS; in place of what is gone, the
// handler puts private memory, and the mapping is not intact from then on.
// Whoever uses the mapping asks `intact()` before it believes what it read, and
// before it tells others of what it wrote.
//
// The handler is installed with the first guard and stays. Faults elsewhere go
// to the handler that was there before, the default one included.
class MappingGuard {
 public:
  // Guards [begin, begin + bytes), whose parts can be replaced in units of
  // `unit` bytes: the page size, or what the device aligns to.
  MappingGuard(std::byte* begin, uint64_t bytes, uint64_t unit);
  ~MappingGuard();  // before the range is unmapped
  MappingGuard(const MappingGuard&) = delete;
  MappingGuard& operator=(const MappingGuard&) = delete;

  // Puts private zeros in place of all of the mapping, which is not intact from
  // then on: what this process still stores reaches nobody.
  void Abandon();

  bool intact() const { return !range_->lost.load(std::memory_order_relaxed); }

  // What the handler knows of a range. Never freed, because a handler may look
  // at it at any time, but used again.
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
