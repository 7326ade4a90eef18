#include "cc/plan/gpu_geometry.h"

#include <gtest/gtest.h>

#include <cstdint>

#include "cc/plan/plan_testing.h"

namespace jax_cxl::plan {
namespace {

// What the engine's ring for such calls can carry, and what it waits for.
TEST(GpuGeometryTest, FlaggedCallsAreOneRound) {
  for (Op op : AllOps()) {
    for (int n : {1, 2, 3, 5, 8, 12, 64}) {
      for (uint64_t count : {0, 1, 100, 511, 1024, 5461, 21845, 32768}) {
        const Request request =
            MakeRequest(op, n, op == Op::kBarrier ? 0 : count, 1);
        if (!IsFlagged(request, kFlaggedAt20GBps)) continue;
        const Result<Plan> plan = MakePlan(request, FlaggedGeometry(n));
        ASSERT_TRUE(plan.ok()) << plan.status().message();
        EXPECT_EQ(plan->rounds, 1u) << OpName(op) << " of " << n;
      }
    }
  }
}

TEST(GpuGeometryTest, FlaggedCallsAreShort) {
  EXPECT_TRUE(IsFlagged(MakeRequest(Op::kBarrier, 4, 0), 1000));
  // All blocks, and whatever a rank holds.
  EXPECT_TRUE(IsFlagged(MakeRequest(Op::kBroadcast, 4, 250, 1), 1000));
  EXPECT_FALSE(IsFlagged(MakeRequest(Op::kBroadcast, 4, 251, 1), 1000));
  EXPECT_TRUE(IsFlagged(MakeRequest(Op::kAllToAll, 4, 125, 1), 1000));
  EXPECT_FALSE(IsFlagged(MakeRequest(Op::kAllToAll, 4, 126, 1), 1000));
}

}  // namespace
}  // namespace jax_cxl::plan
