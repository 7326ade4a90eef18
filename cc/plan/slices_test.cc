// Sanitizers: address, undefined

#include "cc/plan/slices.h"

#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

namespace jax_cxl::plan {
namespace {

// Two ranks with two slices for each. Rank 0 sends 15, 5, 5, 15 rows, and rank
// 1 the same.
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

TEST(SlicesTest, NarrowEntriesBecomeWide) {
  const std::vector<int32_t> narrow = {-1, 7};
  const std::vector<int64_t> wide = {-1, 7};
  EXPECT_EQ(WideSlices(std::as_bytes(std::span(narrow)), 4), wide);
  EXPECT_EQ(WideSlices(std::as_bytes(std::span(wide)), 8), wide);
}

}  // namespace
}  // namespace jax_cxl::plan
