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

TEST(FlaggedRingTest, AMessageHearsAllIfOnlyThisMemberIsNoSource) {
  GpuPlan gpu_plan;
  gpu_plan.receiving.resize(3);
  gpu_plan.receiving[0] = {
      .kind = DeviceStepKind::kReduce, .first = 1, .last = 3};
  gpu_plan.receiving[1] = {.kind = DeviceStepKind::kRelease};
  gpu_plan.receiving[2] = {.kind = DeviceStepKind::kGet, .first = 4, .last = 5};
  const uint64_t sources = SourcesOf(gpu_plan);
  EXPECT_EQ(sources, 0b10110u);
  EXPECT_FALSE(HearsAll(sources, 5, 0));  // 3 is missing
  EXPECT_FALSE(HearsAll(sources, 5, 1));  // 0 and 3
  EXPECT_TRUE(HearsAll(0b10110, 3, 0));
  EXPECT_TRUE(HearsAll(0b10111, 5, 3));
  EXPECT_TRUE(HearsAll(0, 1, 0));
  const uint64_t all = ~uint64_t{0};
  EXPECT_TRUE(HearsAll(all & ~(uint64_t{1} << 63), kMaxMembers, 63));
  EXPECT_FALSE(HearsAll(all & ~uint64_t{1}, kMaxMembers, 63));
}

}  // namespace
}  // namespace jax_cxl::cuda::flagged
