// Sanitizers: address, undefined

#include "cc/plan/slices.h"

#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

namespace jax_cxl::plan {
namespace {

// Returns correct tables of two ranks. Each rank has two slices for each rank.
// It sends slices of 15 and 5 rows to rank 0, and slices of 5 and 15 rows to
// rank 1.
std::vector<int64_t> RightTables() {
  return {
      0, 15, 20, 25, 15, 5, 5, 15, 0,  15, 0,  5,  15, 5,  15, 5,
      0, 15, 20, 25, 15, 5, 5, 15, 20, 35, 20, 25, 5,  15, 5,  15,
  };
}

std::string Refusal(const std::vector<int64_t>& tables) {
  Request request;
  request.op = Op::kRaggedAllToAll;
  request.num_ranks = 2;
  request.rows = {.table = 40, .taken = 40, .slices = 2};
  EXPECT_EQ(tables.size(), 2 * SliceEntries(request));
  const Status status = CheckSlices({tables.data(), 2, request.rows});
  EXPECT_TRUE(status.ok() || status.code() == Code::kInvalidArgument);
  return status.message();
}

std::string Refusal(size_t entry, int64_t value) {
  std::vector<int64_t> tables = RightTables();
  tables[entry] = value;
  return Refusal(tables);
}

TEST(SlicesTest, RightTables) { EXPECT_EQ(Refusal(RightTables()), ""); }

TEST(SlicesTest, ErrorsNameRankAndEntry) {
  EXPECT_EQ(Refusal(1, 36),
            "ragged_all_to_all: rank 0: input_offsets[1] = 36 and "
            "send_sizes[1] = 5 are not within the 40 rows of its operand");
  EXPECT_EQ(Refusal(1, -1),
            "ragged_all_to_all: rank 0: input_offsets[1] = -1 and "
            "send_sizes[1] = 5 are not within the 40 rows of its operand");
  EXPECT_EQ(Refusal(5, -1),
            "ragged_all_to_all: rank 0: input_offsets[1] = 15 and "
            "send_sizes[1] = -1 are not within the 40 rows of its operand");
  EXPECT_EQ(Refusal(16 + 8, std::numeric_limits<int64_t>::max()),
            "ragged_all_to_all: rank 1: output_offsets[0] = "
            "9223372036854775807 and send_sizes[0] = 15 are not within the 40 "
            "rows of "
            "the output");
  EXPECT_EQ(Refusal(12, 14),
            "ragged_all_to_all: rank 0 sends 15 rows (send_sizes[0]), and rank "
            "0 expects 14 (recv_sizes[0])");
  EXPECT_EQ(Refusal(16 + 8, 14),
            "ragged_all_to_all: in the output of rank 0, rows [0, 15) from "
            "rank 0 and rows [14, 29) from rank 1 overlap");
}

// Returns the error message for a batch of three elements, if entry number
// `entry` of the table is set to `value`. One rank sends one slice of each
// element to itself. An element has four rows.
std::string RefusalOfBatch(size_t entry, int64_t value) {
  std::vector<int64_t> tables = {0, 1, 2, 3, 2, 1, 1, 2, 3, 3, 2, 1};
  tables[entry] = value;
  const Rows rows = {.table = 12, .taken = 12, .slices = 3, .elements = 3};
  const SliceTables<int64_t> slices = {tables.data(), 1, rows};
  if (value == 0) {
    EXPECT_EQ(slices.InputRow(0, 2), 8u + tables[2]);
    EXPECT_EQ(slices.OutputRow(0, 1), 4u + tables[7]);
  }
  return CheckSlices(slices).message();
}

TEST(SlicesTest, AnElementOfABatchStaysWithinItsRows) {
  EXPECT_EQ(RefusalOfBatch(0, 0), "");
  const std::string begin = "ragged_all_to_all: element ";
  for (const int64_t offset : {int64_t{-1}, int64_t{3}, int64_t{1} << 40})
    EXPECT_EQ(RefusalOfBatch(1, offset),
              begin + "1 of the batch: rank 0: input_offsets[0] = " +
                  std::to_string(offset) +
                  " and send_sizes[0] = 2 are not within the 4 rows of its "
                  "operand");
  EXPECT_EQ(RefusalOfBatch(8, 4),
            begin +
                "2 of the batch: rank 0: output_offsets[0] = 4 and "
                "send_sizes[0] = 1 are not within the 4 rows of the output");
  EXPECT_EQ(RefusalOfBatch(9, 1),
            begin +
                "0 of the batch: rank 0 sends 3 rows (send_sizes[0]), and rank "
                "0 expects 1 (recv_sizes[0])");
}

TEST(SlicesTest, NarrowEntriesBecomeWide) {
  const std::vector<int32_t> narrow = {-1, 7};
  const std::vector<int64_t> wide = {-1, 7};
  EXPECT_EQ(WideSlices(std::as_bytes(std::span(narrow)), 4), wide);
  EXPECT_EQ(WideSlices(std::as_bytes(std::span(wide)), 8), wide);
}

}  // namespace
}  // namespace jax_cxl::plan
