// Sanitizers: none. Making plans of all sizes takes minutes under a sanitizer.

#include "cc/engine/gpu_plan/gpu_plan.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <iterator>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "cc/plan/planners/make_plan.h"
#include "cc/testing/reference/gpu_plan_machine.h"
#include "cc/testing/reference/plans.h"

namespace jax_cxl::cuda {
namespace {

using plan::Geometry;
using plan::Op;
using plan::Request;

Geometry MakeGeometry(int num_ranks, const Stripes& stripes, int num_slots,
                      uint64_t all_read_bytes, uint64_t extra_lines = 0) {
  const uint64_t period = uint64_t{stripes.num_blocks} * stripes.unit_bytes;
  const bool striped = stripes.slot_step > 0;
  return {.slot_bytes = num_ranks * period + extra_lines * plan::kSlotAlignment,
          .num_slots = num_slots,
          .all_read_bytes = all_read_bytes,
          .num_devices = striped ? 3 : 1,
          .device_parts = striped ? static_cast<int>(stripes.num_blocks) : 1,
          .part_alignment = period};
}

// The last two, whose blocks use different slots, are for pools of several
// devices.
constexpr Stripes kStripes[] = {{1, 128}, {2, 64},     {4, 128},
                                {8, 16},  {4, 128, 1}, {8, 16, 1}};

class GpuPlans : public testing::TestWithParam<Op> {};

TEST_P(GpuPlans, DoWhatIsAskedForInEveryOrder) {
  std::mt19937 random(1);
  for (int n = 2; n <= 5; ++n) {
    for (const Stripes& stripes : kStripes) {
      const bool striped = stripes.slot_step > 0;
      for (int slots : striped ? std::vector{2, 9} : std::vector{2, 3, 4, 7}) {
        for (uint64_t all_read_bytes : {0, 1 << 20}) {
          const Geometry geometry =
              MakeGeometry(n, stripes, slots, all_read_bytes, random() % 3);
          // Test sizes that are near the size of a slot, of a rank's part of a
          // slot, or of several slots.
          const uint64_t slot = geometry.slot_bytes;
          std::vector<Call> calls;
          for (uint64_t bytes :
               {uint64_t{4}, slot / n - 4, slot / n, slot / n + 4, slot - 4,
                slot, slot + 4, (striped ? 9 : 3) * slot + 20}) {
            const uint32_t element_bytes = random() % 2 == 0 ? 4 : 1;
            Request request = MakeRequest(GetParam(), n, bytes / element_bytes,
                                          element_bytes, random() % n);
            if (GetParam() == Op::kPermute)
              request.sources = plan::Sources(n, random() % 4);
            request.reverse = random() % 2 == 0;
            calls.push_back(MakeCall(request, geometry, stripes, random));
          }
          ASSERT_FALSE(HasFailure());
          ASSERT_EQ(Machine(std::move(calls), geometry, stripes).Run(random),
                    "")
              << plan::OpName(GetParam()) << ", " << n << " ranks, " << slots
              << " slots of " << slot << ", " << stripes.num_blocks
              << " blocks of " << stripes.unit_bytes << ", "
              << stripes.slot_step << " slots apart";
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(AllOps, GpuPlans, testing::ValuesIn(plan::AllOps()),
                         [](const auto& info) {
                           return std::string(plan::OpName(info.param));
                         });

// Different operations one after another, with random roots and sizes.
TEST(GpuPlanTest, CallsFollowEachOther) {
  std::mt19937 random(2);
  for (int trial = 0; trial < 150; ++trial) {
    const int n = 2 + random() % 4;
    const Stripes& stripes = kStripes[random() % std::size(kStripes)];
    const Geometry geometry = MakeGeometry(n, stripes, 2 + random() % 4,
                                           random() % 2 * 400, random() % 4);
    std::vector<Call> calls;
    for (int i = 0; i < 8; ++i) {
      Request request =
          MakeRequest(static_cast<Op>(random() % plan::kNumOps), n,
                      random() % 1500, 1 + random() % 4, random() % n);
      if (request.op == Op::kPermute)
        request.sources = plan::Sources(n, random() % 4);
      request.reverse = random() % 2 == 0;
      calls.push_back(MakeCall(request, geometry, stripes, random));
    }
    ASSERT_FALSE(HasFailure());
    ASSERT_EQ(Machine(std::move(calls), geometry, stripes).Run(random), "");
  }
}

TEST(GpuPlanTest, ABlockKeepsToItsSlots) {
  // In successive rounds, a block uses all slots of the ring in turn. So the
  // slot of round t is free once round t - num_slots is released.
  for (uint64_t num_slots : {2, 5, 12}) {
    for (uint64_t block : {0, 1, 11, 63}) {
      for (uint64_t round = 0; round < 3 * num_slots; ++round) {
        const uint64_t slot = plan::SlotOfBlock(round, block, 1, num_slots);
        EXPECT_EQ(plan::SlotOfBlock(round + num_slots, block, 1, num_slots),
                  slot);
        EXPECT_EQ(plan::SlotOfBlock(round + 1, block, 1, num_slots),
                  (slot + 1) % num_slots);
      }
    }
  }
}

// Makes the plans of a call, changes them by `spoil`, and executes them in many
// random orders of steps. Returns the first problem, or "".
template <typename Spoil>
std::string ProblemWith(Op op, const Spoil& spoil) {
  const Stripes stripes{2, 64};
  const Geometry geometry = MakeGeometry(3, stripes, 3, 0);
  const Request request = MakeRequest(op, 3, 1000);
  std::mt19937 random(3);
  for (int trial = 0; trial < 200; ++trial) {
    std::vector<Call> calls{MakeCall(request, geometry, stripes, random)};
    for (GpuPlan& gpu_plan : calls[0].gpu_plans) spoil(gpu_plan);
    const std::string problem =
        Machine(std::move(calls), geometry, stripes).Run(random);
    if (!problem.empty()) return problem;
  }
  return "";
}

TEST(GpuPlanTest, PublishesAfterTheReceivingStepsHaveWritten) {
  for (Op op : {Op::kAllReduce, Op::kReduce}) {
    EXPECT_EQ(ProblemWith(op, [](GpuPlan&) {}), "");
    auto drop = [](GpuPlan& gpu_plan) {
      for (DeviceStep& step : gpu_plan.sending) step.after = 0;
    };
    EXPECT_NE(ProblemWith(op, drop).find("before it was written"),
              std::string::npos)
        << plan::OpName(op);
    auto wait_for_more = [](GpuPlan& gpu_plan) {
      for (DeviceStep& step : gpu_plan.sending)
        if (step.after > 0) step.after = 1u << 20;
    };
    EXPECT_NE(ProblemWith(op, wait_for_more).find("is stuck"),
              std::string::npos)
        << plan::OpName(op);
  }
}

TEST(GpuPlanTest, ReleasesWhatItHasRead) {
  auto release_nothing = [](GpuPlan& gpu_plan) {
    std::erase_if(gpu_plan.receiving, [](const DeviceStep& step) {
      return step.kind == DeviceStepKind::kRelease;
    });
  };
  auto release_first = [](GpuPlan& gpu_plan) {
    std::stable_partition(gpu_plan.receiving.begin(), gpu_plan.receiving.end(),
                          [](const DeviceStep& step) {
                            return step.kind == DeviceStepKind::kRelease;
                          });
  };
  for (Op op : {Op::kAllGather, Op::kReduceScatter, Op::kAllToAll}) {
    EXPECT_NE(ProblemWith(op, release_nothing).find("is stuck"),
              std::string::npos)
        << plan::OpName(op);
    EXPECT_NE(ProblemWith(op, release_first).find("overwrote"),
              std::string::npos)
        << plan::OpName(op);
  }
}

// In this geometry, parts start on multiples of kSlotAlignment (128 bytes), but
// the period of four stripes of 128 bytes is longer. So a block would reduce
// bytes of its own stripes to a result that lies in the stripes of another
// block.
TEST(GpuPlanTest, ABlockDependsOnNoOther) {
  const Geometry geometry{.slot_bytes = 1024, .all_read_bytes = 0};
  Request request = MakeRequest(Op::kAllReduce, 4, 1000);
  request.rank = 1;
  const Result<plan::Plan> plan = MakePlan(request, geometry);
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  EXPECT_TRUE(MakeGpuPlan(*plan, 1, {1, 128}).ok());
  const Result<GpuPlan> gpu_plan = MakeGpuPlan(*plan, 1, {4, 128});
  ASSERT_FALSE(gpu_plan.ok());
  EXPECT_EQ(gpu_plan.status().code(), Code::kUnimplemented);

  plan::Step reduce{.kind = plan::StepKind::kReduceToSlot,
                    .first = 0,
                    .last = 2,
                    .to_round = 1,
                    .from = 256,
                    .to = 128,
                    .bytes = 64};
  EXPECT_EQ(MakeGpuPlan({.rounds = 2, .steps = {reduce}}, 0, {2, 128})
                .status()
                .code(),
            Code::kUnimplemented);
  reduce.to = 512;
  EXPECT_TRUE(MakeGpuPlan({.rounds = 2, .steps = {reduce}}, 0, {2, 128}).ok());
}

TEST(GpuPlanTest, OnlyWhatWasJustReducedGoesFromTheOutputToASlot) {
  plan::Step reduce{.kind = plan::StepKind::kReduce,
                    .first = 0,
                    .last = 2,
                    .to = 64,
                    .bytes = 64};
  const plan::Step release{.kind = plan::StepKind::kRelease};
  const plan::Step put{
      .kind = plan::StepKind::kPutOutput, .round = 1, .from = 64, .bytes = 64};
  const Result<GpuPlan> both =
      MakeGpuPlan({.rounds = 2, .steps = {reduce, release, put}}, 0, {});
  ASSERT_TRUE(both.ok()) << both.status().message();
  ASSERT_EQ(both->receiving.size(), 2u);
  EXPECT_EQ(both->receiving[0].kind, DeviceStepKind::kReduceToBoth);
  EXPECT_EQ(both->bytes_published, 64u);
  EXPECT_EQ(both->bytes_retrieved, 64u);

  EXPECT_EQ(MakeGpuPlan({.rounds = 2, .steps = {put}}, 0, {}).status().code(),
            Code::kUnimplemented);
  reduce.to = 0;
  EXPECT_EQ(
      MakeGpuPlan({.rounds = 2, .steps = {reduce, put}}, 0, {}).status().code(),
      Code::kUnimplemented);
}

}  // namespace
}  // namespace jax_cxl::cuda
