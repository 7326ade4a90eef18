#ifndef JAX_CXL_STORE_TABLE_LOOKUP_H_
#define JAX_CXL_STORE_TABLE_LOOKUP_H_

#include <cstddef>
#include <cstdint>
#include <vector>

namespace jax_cxl::table {

// What a call returns for an id outside of the table. jax_cxl/_table/gather.py
// has the same numbers.
enum class Mode : int32_t {
  kFill = 0,   // the fill value; negative ids count from the end
  kClip = 1,   // the nearest row
  kError = 2,  // an error; negative ids count from the end
};

inline constexpr int64_t kOutside = -1;

constexpr int64_t RowOf(int64_t id, int64_t rows, Mode mode) {
  if (mode == Mode::kClip) {
    if (id >= rows) return rows - 1;  // kOutside without rows
    return id > 0 ? id : 0;
  }
  const int64_t row = id < 0 ? id + rows : id;
  return row >= 0 && row < rows ? row : kOutside;
}

// The parts of a cache of rows (cc/store/cuda/device_cache.h) that a call
// needs. All pointers are to the memory of the device that takes the rows.
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

// Chooses the row of each slot. A bucket keeps those of its rows that occur
// most often in the log. A slot that stays empty gets kOutside.
std::vector<int64_t> ChooseRows(std::vector<int64_t> log, uint64_t buckets);

}  // namespace jax_cxl::table

#endif  // JAX_CXL_STORE_TABLE_LOOKUP_H_
