// Sanitizers: none. The tests only compute values and compare them.

#include "cc/engine/gpu_plan/flagged_ring.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <set>

namespace jax_cxl::cuda::flagged {
namespace {

TEST(FlaggedRingTest, UnitsFillASlotWithoutOverlap) {
  std::set<uint64_t> vectors;
  const uint64_t units = NumUnits(plan::kFlaggedBytes);
  for (uint64_t unit = 0; unit < units; ++unit) {
    vectors.insert(LowVector(unit));
    vectors.insert(HighVector(unit));
  }
  EXPECT_EQ(vectors.size(), 2 * units);
  EXPECT_EQ(*vectors.begin(), 0u);
  EXPECT_EQ(*vectors.rbegin() + kVectorBytes,
            sizeof(FlaggedControl::vectors[0]));
  for (const uint64_t vector : vectors) EXPECT_EQ(vector % kVectorBytes, 0u);
}

// Adjacent units of a group have adjacent vectors in the slot.
TEST(FlaggedRingTest, TheVectorsOfAGroupAreAdjacent) {
  for (uint64_t unit = 1; unit < kGroup; ++unit) {
    EXPECT_EQ(LowVector(unit), LowVector(unit - 1) + kVectorBytes);
    EXPECT_EQ(HighVector(unit), HighVector(unit - 1) + kVectorBytes);
  }
}

TEST(FlaggedRingTest, FlagsBeginAnewInPlaceOfZero) {
  constexpr uint64_t kLast = std::numeric_limits<uint32_t>::max();
  EXPECT_FALSE(BeginsAnew(0));
  EXPECT_FALSE(BeginsAnew(kLast - 1));
  EXPECT_TRUE(BeginsAnew(kLast));
  EXPECT_FALSE(BeginsAnew(kLast + 1));
  EXPECT_EQ(FlagOf(kLast + 1), 1u);
  EXPECT_TRUE(BeginsAnew(2 * kLast + 1));
}

TEST(FlaggedRingTest, OnlyPlansOfOneRoundFit) {
  GpuPlan gpu_plan;
  gpu_plan.rounds = 1;
  gpu_plan.receiving.resize(1);
  gpu_plan.receiving[0].kind = DeviceStepKind::kReduce;
  EXPECT_TRUE(Fits(gpu_plan));
  gpu_plan.receiving[0].kind = DeviceStepKind::kReduceToSlot;
  EXPECT_FALSE(Fits(gpu_plan));
  gpu_plan.receiving[0].kind = DeviceStepKind::kGet;
  gpu_plan.rounds = 2;
  EXPECT_FALSE(Fits(gpu_plan));
  gpu_plan.rounds = 1;
  gpu_plan.sending.resize(kMaxSteps);
  EXPECT_FALSE(Fits(gpu_plan));
}

}  // namespace
}  // namespace jax_cxl::cuda::flagged
