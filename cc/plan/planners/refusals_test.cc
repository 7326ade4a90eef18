// Sanitizers: none. The tests only compute values and compare them.

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "cc/plan/planners/make_plan.h"
#include "cc/testing/reference/plans.h"

namespace jax_cxl::plan {
namespace {

// Returns the error message with which MakePlan refuses a request.
std::string Refusal(const Request& request, const Geometry& geometry,
                    Code code = Code::kInvalidArgument) {
  const Result<Plan> plan = MakePlan(request, geometry);
  EXPECT_FALSE(plan.ok()) << Describe(request, geometry);
  EXPECT_EQ(plan.status().code(), code);
  return plan.status().message();
}

TEST(RefusalsTest, WrongRequests) {
  Request request = MakeRequest(Op::kReduce, 4, 10);
  request.rank = 4;
  EXPECT_EQ(Refusal(request, {}), "reduce: rank is 4, not in [0, 3]");
  request.rank = -1;
  EXPECT_EQ(Refusal(request, {}), "reduce: rank is -1, not in [0, 3]");

  request = MakeRequest(Op::kReduce, 4, 10, 4, 4);
  EXPECT_EQ(Refusal(request, {}), "reduce: root is 4, not in [0, 3]");
  request.op = Op::kAllReduce;  // no root to be wrong
  EXPECT_TRUE(MakePlan(request, {}).ok());

  request = MakeRequest(Op::kScan, 0, 10);
  EXPECT_EQ(Refusal(request, {}), "scan: num_ranks is 0, not in [1, 65536]");

  for (uint32_t element_bytes : {0, 17}) {
    request = MakeRequest(Op::kAllGather, 4, 10, element_bytes);
    EXPECT_NE(Refusal(request, {}).find("element_bytes"), std::string::npos);
  }

  request = MakeRequest(Op::kAllGather, 4, uint64_t{1} << 62, 8);
  EXPECT_NE(Refusal(request, {}).find("count"), std::string::npos);
  request.count = std::numeric_limits<uint64_t>::max();
  EXPECT_NE(Refusal(request, {}).find("count"), std::string::npos);
  request.count = (uint64_t{1} << 44) / 8;
  EXPECT_NE(Refusal(request, {.slot_bytes = 1024}, Code::kResourceExhausted)
                .find("use larger slots"),
            std::string::npos);

  request = MakeRequest(Op::kBarrier, 4, 0);
  request.count = 1;
  EXPECT_EQ(Refusal(request, {}), "barrier: count is 1, not 0");

  request = MakeRequest(Op::kBarrier, 4, 0);
  request.op = static_cast<Op>(kNumOps);
  const std::string number = std::to_string(kNumOps);
  EXPECT_EQ(Refusal(request, {}),
            "op is " + number + ", but must be less than " + number);
}

TEST(RefusalsTest, WrongSources) {
  Request request = MakeRequest(Op::kPermute, 4, 10);
  request.sources = {1, 2, 3};
  EXPECT_EQ(Refusal(request, {}),
            "permute: sources has 3 entries, but there are 4 ranks");
  request.sources = {1, 2, 4, 0};
  EXPECT_EQ(Refusal(request, {}),
            "permute: sources[2] is 4, not -1 or a rank below 4");
  request.sources = {1, 2, -2, 0};
  EXPECT_EQ(Refusal(request, {}),
            "permute: sources[2] is -2, not -1 or a rank below 4");
  request.sources = {1, -1, -1, 1};
  EXPECT_EQ(Refusal(request, {}),
            "permute: rank 1 is the source of both rank 0 and rank 3");
}

TEST(RefusalsTest, WrongRows) {
  Request request = MakeRequest(Op::kRaggedAllToAll, 2, 40);
  request.rows.table = 3;
  EXPECT_EQ(Refusal(request, {}),
            "ragged_all_to_all: 40 elements are not 3 rows");
  request.rows.table = 40;
  request.rows.slices = 0;
  EXPECT_NE(Refusal(request, {}).find("0 slices for each rank"),
            std::string::npos);
  request.rows.slices = uint64_t{1} << 60;
  EXPECT_NE(Refusal(request, {}).find("slices for each rank"),
            std::string::npos);
  for (Op op : {Op::kRaggedAllToAll, Op::kTakeRows}) {
    request = MakeRequest(op, 2, 40);
    request.count = request.rows.table = uint64_t{1} << 30;
    EXPECT_NE(Refusal(request, {}).find("fewer than 2**31"), std::string::npos);
    request = MakeRequest(op, 2, 40);
    request.rows.taken = uint64_t{1} << 31;
    EXPECT_NE(Refusal(request, {}).find("fewer than 2**31"), std::string::npos);
  }
}

TEST(RefusalsTest, WrongGeometry) {
  const Request request = MakeRequest(Op::kAllGather, 4, 10);
  EXPECT_EQ(Refusal(request, {.num_slots = 1}),
            "num_slots is 1, but at least 2 are needed");
  EXPECT_EQ(Refusal(request, {.slot_bytes = 1000}),
            "slot_bytes is 1000, not a multiple of 128");
  EXPECT_EQ(Refusal(request, {.slot_bytes = 384}),
            "slot_bytes is 384, but 4 ranks need at least 512: raise or unset "
            "JAX_CXL_SLOT_BYTES");
  EXPECT_EQ(Refusal(request, {.slot_bytes = 0}),
            "slot_bytes is 0, but 4 ranks need at least 512: raise or unset "
            "JAX_CXL_SLOT_BYTES");
}

}  // namespace
}  // namespace jax_cxl::plan
