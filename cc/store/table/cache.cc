#include "cc/store/table/cache.h"

#include <algorithm>
#include <atomic>
#include <cstring>
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

HostCache::HostCache(uint64_t rows, uint64_t row_bytes)
    : Cache(rows),
      rows_(slots(), kOutside),
      data_(slots() * row_bytes),
      log_(view_.log_size, kOutside) {
  view_.rows = rows_.data();
  view_.data = data_.data();
  view_.log = log_.data();
  view_.counts = counts_;
}

Result<Cache::Counts> HostCache::counts() {
  const auto load = [](unsigned long long& count) {
    return std::atomic_ref(count).load(std::memory_order_relaxed);
  };
  return Counts{load(counts_[0]), load(counts_[1])};
}

Result<std::vector<int64_t>> HostCache::ReadLog() { return log_; }

Status HostCache::Fill(const Column& column, std::span<const int64_t> rows) {
  std::ranges::copy(rows, rows_.begin());
  for (uint64_t slot = 0; slot < rows.size(); ++slot)
    if (rows[slot] != kOutside)
      std::memcpy(data_.data() + slot * column.row_bytes,
                  column.data + rows[slot] * column.row_bytes,
                  column.row_bytes);
  return OkStatus();
}

}  // namespace jax_cxl::table
