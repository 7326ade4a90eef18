#include "cc/store/table/cache.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "cc/store/table/column.h"

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

class FakeCache final : public Cache {
 public:
  explicit FakeCache(uint64_t rows) : Cache(rows) {}

  Result<Counts> counts() override { return Counts{}; }

  std::vector<int64_t> log;
  std::vector<int64_t> filled;
  std::function<void()> meanwhile = [] {};

 private:
  Result<std::vector<int64_t>> ReadLog() override { return log; }
  Status Fill(const Column&, std::span<const int64_t> rows) override {
    meanwhile();
    filled.assign(rows.begin(), rows.end());
    return OkStatus();
  }
};

TEST(CacheTest, EachCallHasAPartOfTheLog) {
  FakeCache cache(60);
  EXPECT_EQ(cache.View(5).buckets, 8u);
  EXPECT_EQ(cache.View(7).log_at, 5u);
  EXPECT_EQ(cache.View(1).log_at, 12u);
}

TEST(CacheTest, CallsDoNotUseItWhileItIsFilled) {
  Column column;
  FakeCache cache(60);
  cache.log = {7, 3, 7, kOutside};
  int refreshed = 0;
  cache.meanwhile = [&] {
    ++refreshed;
    EXPECT_EQ(cache.View(1).buckets, 0u);
  };
  ASSERT_TRUE(cache.Refresh(column).ok());
  EXPECT_EQ(refreshed, 1);
  EXPECT_EQ(cache.View(1).buckets, 8u);
  EXPECT_EQ(cache.filled, ChooseRows(cache.log, 8));
}

}  // namespace
}  // namespace jax_cxl::table
