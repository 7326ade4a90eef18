// Sanitizers: none. It computes with values, and compares the results.

#include "cc/simulator/bounds.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>

#include "cc/plan/planners/make_plan.h"
#include "cc/testing/reference/plans.h"
#include "cc/testing/verify/debug_string.h"

namespace jax_cxl::plan {
namespace {

TEST(BoundsTest, LargeBlocksMoveWhatTheyMust) {
  for (int n : {2, 3, 4, 5, 8, 12, 17, 32, 64}) {
    for (Op op : AllOps()) {
      // All buffers have about 16 MiB and an odd number of elements.
      Request request = MakeRequest(op, n, (4 << 20) + 1, 4, n / 2);
      const uint64_t larger =
          std::max(InputBytes(request), OutputBytes(request));
      if (larger > InputBytes(request) || larger > OutputBytes(request) ||
          op == Op::kAllToAll) {
        request.count /= n;
      }
      if (MovesRows(op)) request.rows = {request.count, n * request.count, 1};
      const Geometry geometry{.slot_bytes = 1 << 20, .num_slots = 4};
      const Traffic traffic = ExpectVerified(request, geometry);
      SCOPED_TRACE(Describe(request, geometry));
      ASSERT_EQ(traffic.by_rank.size(), static_cast<size_t>(n));
      // No rank moves more than 3% above its bound. The sum over all ranks is
      // equal to the sum of their bounds. A single rank may differ from its
      // bound, because the shares of a reduction may differ by one segment.
      PoolBytes sum, bounds;
      for (request.rank = 0; request.rank < n; ++request.rank) {
        const PoolBytes bound = LowerBound(request);
        const PoolBytes bytes = traffic.by_rank[request.rank];
        EXPECT_LE(bytes.written, bound.written * 1.03) << request.rank;
        EXPECT_LE(bytes.read, bound.read * 1.03) << request.rank;
        sum.written += bytes.written;
        sum.read += bytes.read;
        bounds.written += bound.written;
        bounds.read += bound.read;
      }
      EXPECT_EQ(sum.written, bounds.written);
      EXPECT_NEAR(sum.read, bounds.read, n);  // 2 (n - 1) / n B rounds down
    }
  }
}

TEST(BoundsTest, AllReduceReadsTwiceButForItsOwnShare) {
  const int n = 8;
  const uint64_t bytes = 64 << 20;
  const Traffic traffic =
      ExpectVerified(MakeRequest(Op::kAllReduce, n, bytes / 4), {});
  for (const PoolBytes& rank : traffic.by_rank) {
    EXPECT_NEAR(rank.read, 2. * (n - 1) / n * bytes, bytes * .005);
    EXPECT_NEAR(rank.written, bytes, bytes * .005);
  }
}

TEST(BoundsTest, SmallAllReduceIsOneExchange) {
  const Request request = MakeRequest(Op::kAllReduce, 8, 4096);
  const Result<Plan> plan = MakePlan(request, {});
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(plan->rounds, 1u);
  EXPECT_EQ(plan->steps.size(), 4u) << DebugString(*plan);
}

// A call uses all devices equally, because the slots of a ring lie on all of
// them.
TEST(BoundsTest, DevicesShareTheLoad) {
  for (Op op : {Op::kAllGather, Op::kAllReduce, Op::kReduceScatter,
                Op::kAllToAll, Op::kPermute}) {
    for (int devices : {1, 2, 4}) {
      const Traffic traffic =
          ExpectVerified(MakeRequest(op, 8, 16 << 20), {.num_slots = 4},
                         {.num_devices = devices});
      ASSERT_EQ(traffic.by_device.size(), static_cast<size_t>(devices));
      PoolBytes sum, ranks;
      for (const PoolBytes& device : traffic.by_device) {
        sum.written += device.written;
        sum.read += device.read;
      }
      for (const PoolBytes& rank : traffic.by_rank) {
        ranks.written += rank.written;
        ranks.read += rank.read;
      }
      EXPECT_EQ(sum, ranks);
      ExpectEvenDevices(traffic, 1.05, std::string(OpName(op)));
    }
  }
}

}  // namespace
}  // namespace jax_cxl::plan
