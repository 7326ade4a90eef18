// Sanitizers: address, thread
#include "cc/store/table/take.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <memory>
#include <shared_mutex>
#include <string>
#include <thread>
#include <vector>

#include "cc/store/memory/registry.h"
#include "cc/store/table/column.h"

namespace jax_cxl::table {
namespace {

constexpr uint64_t kRows = 37;

std::vector<std::byte> Numbered(uint64_t row_bytes) {
  std::vector<std::byte> rows(kRows * row_bytes);
  for (size_t i = 0; i < rows.size(); ++i)
    rows[i] = static_cast<std::byte>(i * 7 + i / row_bytes);
  return rows;
}

template <typename Id>
std::vector<std::byte> Take(const Column& column, const std::vector<Id>& ids,
                            Mode mode, Status* status) {
  // One byte more than the output needs. It must keep its value.
  std::vector<std::byte> out(ids.size() * column.row_bytes + 1,
                             std::byte{0x5c});
  Request request;
  request.ids = {ids.data(), ids.size(), sizeof(Id) == 8};
  request.mode = mode;
  request.fill.fill(std::byte{0xab});
  request.output = out.data();
  *status = TakeRows(column, request, 0, ids.size());
  EXPECT_EQ(out.back(), std::byte{0x5c});
  out.pop_back();
  return out;
}

template <typename Id>
void CheckAllSizes(const std::vector<Id>& ids) {
  for (uint64_t row_bytes : {1, 2, 3, 4, 8, 12, 16, 32, 64, 100, 600}) {
    const std::vector<std::byte> rows = Numbered(row_bytes);
    Column column;
    column.data = rows.data();
    column.rows = kRows;
    column.row_bytes = row_bytes;
    for (Mode mode : {Mode::kFill, Mode::kClip}) {
      Status status;
      const std::vector<std::byte> out = Take(column, ids, mode, &status);
      ASSERT_TRUE(status.ok()) << status.message();
      for (size_t i = 0; i < ids.size(); ++i) {
        int64_t row = ids[i];
        if (mode == Mode::kClip)
          row = std::min<int64_t>(std::max<int64_t>(row, 0), kRows - 1);
        else if (row < 0)
          row += kRows;
        const bool inside = row >= 0 && row < static_cast<int64_t>(kRows);
        for (uint64_t at = 0; at < row_bytes; ++at)
          ASSERT_EQ(out[i * row_bytes + at],
                    inside ? rows[row * row_bytes + at] : std::byte{0xab})
              << "row " << ids[i] << " of " << row_bytes << " bytes";
      }
    }
  }
}

TEST(TakeTest, AllSizesOfRows) {
  std::vector<int32_t> ids = {0, 36, 37, -1, -37, -38, 2147483647, -2147483647};
  for (int i = 0; i < 1200; ++i) ids.push_back(i * 13 % 41);
  CheckAllSizes(ids);
  CheckAllSizes(std::vector<int64_t>(ids.begin(), ids.end()));
  CheckAllSizes<int64_t>({int64_t{1} << 62, -(int64_t{1} << 62)});
}

TEST(TakeTest, AnErrorNamesTheId) {
  const std::vector<std::byte> rows = Numbered(8);
  Column column;
  column.data = rows.data();
  column.rows = kRows;
  column.row_bytes = 8;
  Status status;
  Take<int32_t>(column, {0, -37, 36}, Mode::kError, &status);
  EXPECT_TRUE(status.ok());
  Take<int32_t>(column, {0, 5, 37, -99}, Mode::kError, &status);
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  EXPECT_NE(status.message().find("id 37 at position 2"), std::string::npos)
      << status.message();
}

TEST(TakeTest, AStepThatDoesNotFinishIsAnError) {
  const std::vector<std::byte> rows = Numbered(8);
  std::array<PartWords, 2> words = {};
  Column column;
  column.data = rows.data();
  column.rows = kRows;
  column.row_bytes = 8;
  column.parts = words.data();
  column.rows_of_part = 20;
  column.timeout_s = 0.02;
  words[1].begun = 3;
  Status status;
  Take<int32_t>(column, {0, 19}, Mode::kFill, &status);
  EXPECT_TRUE(status.ok());
  Take<int32_t>(column, {0, 20}, Mode::kFill, &status);
  EXPECT_EQ(status.code(), Code::kDeadlineExceeded);
  EXPECT_NE(status.message().find("step 3"), std::string::npos);
  words[1].finished = 3;
  Take<int32_t>(column, {0, 20}, Mode::kFill, &status);
  EXPECT_TRUE(status.ok());
}

TEST(WriteTest, RowsOutsideAreRefused) {
  std::vector<std::byte> rows = Numbered(8);
  const std::vector<std::byte> before = rows;
  Column column;
  column.data = rows.data();
  column.rows = kRows;
  column.row_bytes = 8;
  std::array<std::byte, 16> data = {};
  for (int64_t wrong : {int64_t{-1}, int64_t{37}}) {
    const std::array<int64_t, 2> ids = {0, wrong};
    EXPECT_EQ(WriteRows(column, ids, data).code(), Code::kInvalidArgument);
  }
  const std::array<int64_t, 1> one = {3};
  EXPECT_EQ(WriteRows(column, one, data).code(), Code::kInvalidArgument);
  EXPECT_EQ(rows, before);
}

// Remove returns only after the last reader has released its lock. So the
// memory of the column may be freed afterwards.
TEST(RegistryTest, RemoveWaitsForReaders) {
  auto& registry = pool::Registry<Column>::Get();
  const pool::Registry<Column>::Name name = {77, 1};
  for (int round = 0; round < 50; ++round) {
    auto rows = std::make_unique<std::vector<std::byte>>(Numbered(64));
    auto column = std::make_shared<Column>();
    column->data = rows->data();
    column->rows = kRows;
    column->row_bytes = 64;
    registry.Add(name, column);
    std::atomic<bool> started = false;
    std::thread reader([&] {
      const std::shared_ptr<const Column> found = registry.Find(name);
      std::shared_lock in_use(found->in_use);
      started = true;
      if (found->closed) return;
      Status status;
      Take<int32_t>(*found, {1, 2, 3}, Mode::kFill, &status);
      EXPECT_TRUE(status.ok());
    });
    while (!started) std::this_thread::yield();
    registry.Remove(name, column);
    rows.reset();
    reader.join();
    EXPECT_EQ(registry.Find(name), nullptr);
  }
}

}  // namespace
}  // namespace jax_cxl::table
