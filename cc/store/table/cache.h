#ifndef JAX_CXL_STORE_TABLE_CACHE_H_
#define JAX_CXL_STORE_TABLE_CACHE_H_

#include <atomic>
#include <cstdint>
#include <mutex>
#include <span>
#include <vector>

#include "cc/base/status.h"
#include "cc/store/table/cache_view.h"

namespace jax_cxl::table {

struct Column;

// Holds copies of the table rows that a GPU recently took most often. The
// copies are in the memory of this GPU. The rows of the table never change.
//
// The cache is empty until the first call of Refresh. A call that takes rows
// never changes the copies. It only notes in a log which rows it took.
//
// Thread-safe.
class Cache {
 public:
  struct Counts {
    uint64_t wanted = 0;  // rows that were looked for
    uint64_t found = 0;
  };

  virtual ~Cache() = default;
  Cache(const Cache&) = delete;
  Cache& operator=(const Cache&) = delete;

  // Returns the cache for a call that takes `count` rows. While Refresh fills
  // the cache, returns an empty view, so that the call takes all rows from the
  // table. The caller holds `column.in_use`.
  CacheView View(uint64_t count);

  // Replaces the copies with copies of the rows that occur most often in the
  // log. Meanwhile, calls take rows without the cache.
  Status Refresh(const Column& column);

  virtual Result<Counts> counts() = 0;

 protected:
  explicit Cache(uint64_t rows);

  uint64_t slots() const { return view_.buckets * CacheView::kSlotsOfBucket; }

  // Returns the log. Called while no call uses the cache.
  virtual Result<std::vector<int64_t>> ReadLog() = 0;
  // Copies rows into the cache. rows[i] is the row for slot i, or kOutside.
  // Called while no call uses the cache.
  virtual Status Fill(const Column& column, std::span<const int64_t> rows) = 0;

  CacheView view_;

 private:
  void SetUsed(const Column& column, bool used);

  std::mutex refresh_mutex_;
  bool used_ = true;  // guarded by column.in_use
  std::atomic<uint64_t> log_at_ = 0;
};

// Chooses the row of each slot. A bucket keeps those of its rows that occur
// most often in the log. A slot that stays empty gets kOutside.
std::vector<int64_t> ChooseRows(std::vector<int64_t> log, uint64_t buckets);

}  // namespace jax_cxl::table

#endif  // JAX_CXL_STORE_TABLE_CACHE_H_
