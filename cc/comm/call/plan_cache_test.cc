#include "cc/comm/call/plan_cache.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "cc/testing/verify/debug_string.h"

namespace jax_cxl::comm {
namespace {

using plan::Op;

constexpr uint64_t kPayloadBytes = 1024;

PlanCache MakePlanCache() { return PlanCache(plan::Geometry(), kPayloadBytes); }

Call MakeCall(Op op, int ranks, int rank, uint64_t count) {
  Call call;
  call.dtype = DType::kInt32;
  call.request.op = op;
  call.request.num_ranks = ranks;
  call.request.rank = rank;
  call.request.count = op == Op::kBarrier ? 0 : count;
  call.request.element_bytes = sizeof(int32_t);
  return call;
}

std::shared_ptr<const CallPlan> Make(PlanCache& cache, const Call& call) {
  Result<std::shared_ptr<const CallPlan>> call_plan = cache.Find(call);
  EXPECT_TRUE(call_plan.ok()) << call_plan.status().message();
  return call_plan.ok() ? *call_plan : nullptr;
}

TEST(PlanCacheTest, WhatFitsIntoASubmissionIsEager) {
  struct Case {
    Op op;
    int ranks;
    uint64_t last_eager;  // elements of a block
  };
  const uint64_t elements = kPayloadBytes / sizeof(int32_t);
  for (const Case& c :
       {Case{Op::kAllGather, 2, elements}, Case{Op::kAllReduce, 4, elements},
        Case{Op::kBroadcast, 3, elements},
        // The payload consists of blocks for three peers. Each block begins on
        // a multiple of kSlotAlignment, so a block has fewer than a third of
        // the elements.
        Case{Op::kAllToAll, 4, elements / 4},
        Case{Op::kReduceScatter, 2, elements / 2}}) {
    for (int rank = 0; rank < c.ranks; ++rank) {
      PlanCache cache = MakePlanCache();
      auto small = Make(cache, MakeCall(c.op, c.ranks, rank, c.last_eager));
      EXPECT_TRUE(small->eager) << plan::OpName(c.op);
      EXPECT_LE(small->payload_bytes, kPayloadBytes);
      auto large = Make(cache, MakeCall(c.op, c.ranks, rank, 2 * elements + 1));
      EXPECT_FALSE(large->eager) << plan::OpName(c.op);
    }
  }
}

TEST(PlanCacheTest, AreMadeOnceForEachKind) {
  PlanCache cache = MakePlanCache();
  const Call call = MakeCall(Op::kAllGather, 2, 0, 5);
  const auto first = Make(cache, call);
  EXPECT_EQ(Make(cache, call), first);
  Call other = call;
  other.request.count = 6;
  EXPECT_NE(Make(cache, other), first);
  other = call;
  other.dtype = DType::kFloat32;
  EXPECT_NE(Make(cache, other), first);
  EXPECT_EQ(Make(cache, call), first);
  // These calls differ only in their sources.
  Call ring = MakeCall(Op::kPermute, 2, 0, 5), self = ring;
  ring.request.sources = {1, 0};
  self.request.sources = {0, 1};
  const auto of_ring = Make(cache, ring);
  EXPECT_NE(Make(cache, self), of_ring);
  EXPECT_EQ(Make(cache, ring), of_ring);
}

// A program whose shapes change all the time must not fill the memory.
TEST(PlanCacheTest, ManyKindsAreForgottenAndStayInUse) {
  PlanCache cache = MakePlanCache();
  const auto first = Make(cache, MakeCall(Op::kAllGather, 2, 0, 1));
  for (uint64_t count = 2; count < 1000; ++count)
    Make(cache, MakeCall(Op::kAllGather, 2, 0, count));
  EXPECT_EQ(first.use_count(), 1);
  const auto again = Make(cache, MakeCall(Op::kAllGather, 2, 0, 1));
  EXPECT_NE(again, first);
  EXPECT_EQ(plan::DebugString(again->plan), plan::DebugString(first->plan));
}

TEST(PlanCacheTest, ARequestThatIsWrongHasNone) {
  PlanCache cache = MakePlanCache();
  Call call = MakeCall(Op::kBroadcast, 2, 0, 5);
  call.request.root = 2;
  EXPECT_EQ(cache.Find(call).status().code(), Code::kInvalidArgument);
  call.request.root = 1;
  EXPECT_TRUE(cache.Find(call).ok());
}

}  // namespace
}  // namespace jax_cxl::comm
