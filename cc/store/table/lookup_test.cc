#include "cc/store/table/lookup.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

namespace jax_cxl::table {
namespace {

TEST(ChooseRowsTest, TheMostFrequentOfEachBucket) {
  std::vector<int64_t> log = {kOutside, kOutside};
  for (int64_t row = 0; row < 300; ++row)
    for (int64_t times = 0; times <= row % 7; ++times) log.push_back(row);
  constexpr uint64_t kBuckets = 5;
  const std::vector<int64_t> rows = ChooseRows(log, kBuckets);
  ASSERT_EQ(rows.size(), kBuckets * CacheView::kSlotsOfBucket);
  const auto times = [](int64_t row) { return row % 7; };
  for (int64_t row = 0; row < 300; ++row) {
    const uint64_t bucket = BucketOf(row, kBuckets);
    const auto first =
        rows.begin() + static_cast<int64_t>(bucket * CacheView::kSlotsOfBucket);
    const auto last = first + CacheView::kSlotsOfBucket;
    const int64_t slot = SlotOf(row, kBuckets, rows.data());
    if (slot != kOutside) {
      EXPECT_EQ(rows[slot], row);
      continue;
    }
    for (auto other = first; other != last; ++other) {
      ASSERT_NE(*other, kOutside);
      EXPECT_GE(times(*other), times(row));
    }
  }
  EXPECT_EQ(ChooseRows({}, 2), std::vector<int64_t>(16, kOutside));
}

}  // namespace
}  // namespace jax_cxl::table
