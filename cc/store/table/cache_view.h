#ifndef JAX_CXL_STORE_TABLE_CACHE_VIEW_H_
#define JAX_CXL_STORE_TABLE_CACHE_VIEW_H_

#include <cstddef>
#include <cstdint>

#include "cc/store/table/row_of.h"

namespace jax_cxl::table {

// The parts of a cache (cache.h) that a call needs. All pointers are to the
// memory of the device that takes the rows.
struct CacheView {
  // The number of slots of a bucket. A row can only be in the bucket that
  // BucketOf returns.
  static constexpr uint64_t kSlotsOfBucket = 8;

  uint64_t buckets = 0;             // 0: there is no cache
  const int64_t* rows = nullptr;    // the row of each slot, or kOutside
  const std::byte* data = nullptr;  // the bytes of these rows
  // A ring buffer that lists the rows taken recently. The call writes from
  // position `log_at` on.
  int64_t* log = nullptr;
  uint64_t log_size = 1;
  uint64_t log_at = 0;
  // counts[0]: how many rows were looked up. counts[1]: how many of them were
  // in the cache.
  unsigned long long* counts = nullptr;
};

constexpr uint64_t BucketOf(int64_t row, uint64_t buckets) {
  const uint64_t hash = static_cast<uint64_t>(row) * 0x9e3779b97f4a7c15 >> 32;
  return hash * buckets >> 32;
}

constexpr int64_t SlotOf(int64_t row, uint64_t buckets, const int64_t* rows) {
  const uint64_t first = BucketOf(row, buckets) * CacheView::kSlotsOfBucket;
  for (uint64_t i = 0; i < CacheView::kSlotsOfBucket; ++i)
    if (rows[first + i] == row) return static_cast<int64_t>(first + i);
  return kOutside;
}

}  // namespace jax_cxl::table

#endif  // JAX_CXL_STORE_TABLE_CACHE_VIEW_H_
