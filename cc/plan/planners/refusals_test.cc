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

TEST(RefusalsTest, BlocksThatAreTooLarge) {
  Request request = MakeRequest(Op::kAllGather, 4, uint64_t{1} << 62, 8);
  EXPECT_NE(Refusal(request, {}).find("count"), std::string::npos);
  request.count = std::numeric_limits<uint64_t>::max();
  EXPECT_NE(Refusal(request, {}).find("count"), std::string::npos);
  request.count = (uint64_t{1} << 44) / 8;
  EXPECT_NE(Refusal(request, {.slot_bytes = 1024}, Code::kResourceExhausted)
                .find("use larger slots"),
            std::string::npos);
}

TEST(RefusalsTest, WrongRows) {
  Request request = MakeRequest(Op::kRaggedAllToAll, 2, 40);
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
  EXPECT_EQ(Refusal(request, {.slot_bytes = 384}),
            "slot_bytes is 384, but 4 ranks need at least 512: raise or unset "
            "JAX_CXL_SLOT_BYTES");
  EXPECT_EQ(Refusal(request, {.slot_bytes = 0}),
            "slot_bytes is 0, but 4 ranks need at least 512: raise or unset "
            "JAX_CXL_SLOT_BYTES");
}

}  // namespace
}  // namespace jax_cxl::plan
