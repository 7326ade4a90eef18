#include "cc/store/table/cache.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <utility>

#include "cc/store/table/column.h"

namespace jax_cxl::table {
namespace {

// How many entries the log has for each slot of the cache. A log of this length
// shows which rows are taken often, and takes little memory.
constexpr uint64_t kLogOfSlot = 8;

struct Counted {
  uint64_t times;
  int64_t row;
};

// Returns the rows of a log, the most frequent first.
std::vector<Counted> Count(std::vector<int64_t> log) {
  std::ranges::sort(log);
  std::vector<Counted> counted;
  for (int64_t row : log) {
    if (row == kOutside) continue;
    if (counted.empty() || counted.back().row != row)
      counted.push_back({0, row});
    ++counted.back().times;
  }
  std::ranges::stable_sort(counted, std::ranges::greater{}, &Counted::times);
  return counted;
}

}  // namespace

std::vector<int64_t> ChooseRows(std::vector<int64_t> log, uint64_t buckets) {
  constexpr uint64_t kSlots = CacheView::kSlotsOfBucket;
  std::vector<int64_t> rows(buckets * kSlots, kOutside);
  std::vector<uint64_t> used(buckets);
  for (const Counted& counted : Count(std::move(log))) {
    const uint64_t bucket = BucketOf(counted.row, buckets);
    if (used[bucket] < kSlots)
      rows[bucket * kSlots + used[bucket]++] = counted.row;
  }
  return rows;
}

Cache::Cache(uint64_t rows) {
  constexpr uint64_t kSlots = CacheView::kSlotsOfBucket;
  view_.buckets = std::max<uint64_t>((rows + kSlots - 1) / kSlots, 1);
  view_.log_size = slots() * kLogOfSlot;
}

CacheView Cache::View(uint64_t count) {
  if (!used_) return {};
  CacheView view = view_;
  view.log_at = log_at_.fetch_add(count, std::memory_order_relaxed);
  return view;
}

void Cache::SetUsed(const Column& column, bool used) {
  std::lock_guard lock(column.in_use);
  used_ = used;
}

Status Cache::Refresh(const Column& column) {
  std::lock_guard lock(refresh_mutex_);
  SetUsed(column, false);
  CXL_ASSIGN_OR_RETURN(std::vector<int64_t> log, ReadLog());
  CXL_RETURN_IF_ERROR(Fill(column, ChooseRows(std::move(log), view_.buckets)));
  SetUsed(column, true);
  return OkStatus();
}

}  // namespace jax_cxl::table
