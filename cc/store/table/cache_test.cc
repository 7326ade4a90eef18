// Sanitizers: address, thread
#include "cc/store/table/cache.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <shared_mutex>
#include <thread>
#include <vector>

#include "cc/store/table/column.h"
#include "cc/store/table/take.h"

namespace jax_cxl::table {
namespace {

constexpr uint64_t kTableRows = 500;

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

class CacheTest : public testing::Test {
 protected:
  CacheTest() : data_(kTableRows * 24) {
    for (size_t i = 0; i < data_.size(); ++i)
      data_[i] = static_cast<std::byte>(i * 7 + i / 24);
    column_.data = data_.data();
    column_.rows = kTableRows;
    column_.row_bytes = 24;
    column_.caches[0] = std::make_unique<HostCache>(60, 24);
  }

  // Takes rows, and compares them with the table.
  void Take(const std::vector<int32_t>& ids) {
    std::vector<std::byte> out(ids.size() * 24);
    Request request;
    request.ids = {ids.data(), ids.size(), false};
    request.output = out.data();
    std::shared_lock in_use(column_.in_use);
    ASSERT_TRUE(TakeRows(column_, request, 0, ids.size(),
                         column_.CacheFor(0, ids.size()))
                    .ok());
    for (size_t i = 0; i < ids.size(); ++i) {
      const bool inside = ids[i] < static_cast<int32_t>(kTableRows);
      const std::byte* expected = data_.data() + ids[i] * 24;
      if (inside) {
        ASSERT_EQ(std::memcmp(&out[i * 24], expected, 24), 0);
      } else {
        ASSERT_EQ(out[i * 24], std::byte{0});
      }
    }
  }

  Cache& cache() { return *column_.caches[0]; }

  std::vector<std::byte> data_;
  Column column_;
};

TEST_F(CacheTest, FindsWhatWasTakenOften) {
  std::vector<int32_t> ids;
  for (int i = 0; i < 400; ++i) ids.push_back(i % 4 == 0 ? i : 499 - i % 20);
  Take(ids);
  EXPECT_EQ(cache().counts()->found, 0u);
  ASSERT_TRUE(cache().Refresh(column_).ok());
  Take(std::vector<int32_t>(30, 498));
  EXPECT_EQ(cache().counts()->wanted, 430u);
  EXPECT_EQ(cache().counts()->found, 30u);
  Take({500, 1000});
  EXPECT_EQ(cache().counts()->wanted, 430u) << "not rows of the table";
  Take(ids);
}

TEST_F(CacheTest, OldRowsLeaveTheLog) {
  Take(std::vector<int32_t>(40, 7));
  for (int round = 0; round < 3; ++round)
    for (int32_t row = 100; row < 500; ++row) Take({row, row});
  ASSERT_TRUE(cache().Refresh(column_).ok());
  const uint64_t before = cache().counts()->found;
  Take({7});
  EXPECT_EQ(cache().counts()->found, before);
}

TEST_F(CacheTest, TakesDuringARefresh) {
  std::atomic<bool> stop = false;
  std::vector<std::thread> readers;
  for (int32_t seed = 0; seed < 2; ++seed)
    readers.emplace_back([&, seed] {
      std::vector<int32_t> ids;
      for (int32_t i = 0; i < 300; ++i) ids.push_back((i * i + seed) % 90);
      while (!stop) Take(ids);
    });
  for (int i = 0; i < 50; ++i) EXPECT_TRUE(cache().Refresh(column_).ok());
  stop = true;
  for (std::thread& reader : readers) reader.join();
}

}  // namespace
}  // namespace jax_cxl::table
