#include "cc/store/table/lookup.h"

#include <algorithm>
#include <utility>

namespace jax_cxl::table {
namespace {

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

}  // namespace jax_cxl::table
