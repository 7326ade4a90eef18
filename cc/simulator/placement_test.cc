// Sanitizers: none. It computes with values, and compares the results.

#include "cc/simulator/placement.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <numeric>
#include <vector>

namespace jax_cxl::sim {
namespace {

constexpr int kCards = 6, kRanks = 8;

plan::Geometry TestGeometry() {
  return {.slot_bytes = uint64_t{2} << 20, .num_slots = 12};
}

std::vector<uint64_t> Bytes(const Placement& placement, int owner,
                            uint64_t round, uint64_t at, uint64_t bytes) {
  std::vector<uint64_t> by_card(placement.cards());
  placement.Add(owner, round, at, bytes, by_card);
  return by_card;
}

TEST(PlacementTest, AWholeRoundLiesInItsSlot) {
  const Placement placement(TestGeometry(), {}, kRanks, kCards);
  for (int owner = 0; owner < kRanks; ++owner) {
    for (uint64_t round = 0; round < 30; ++round) {
      std::vector<uint64_t> expected(kCards);
      expected[(owner * kCards / kRanks + round % 12) % kCards] = 1000;
      EXPECT_EQ(Bytes(placement, owner, round, 77, 1000), expected);
    }
  }
}

// Compares Placement, byte for byte, with the definition of plan::Stripes.
TEST(PlacementTest, StripesLieInTheSlotsOfTheirBlocks) {
  const plan::Stripes stripes{8, 16, 1};
  const Placement placement(TestGeometry(), stripes, kRanks, kCards);
  for (uint64_t at : {0, 5, 100, 128, 1000}) {
    for (uint64_t bytes : {1, 16, 100, 128, 129, 4000}) {
      for (int owner : {0, 3, 7}) {
        for (uint64_t round : {0, 5, 11, 13}) {
          std::vector<uint64_t> expected(kCards);
          for (uint64_t x = at; x < at + bytes; ++x) {
            const uint64_t block = x / 16 % 8;
            const uint64_t slot = (round + block) % 12;
            ++expected[(owner * kCards / kRanks + slot) % kCards];
          }
          EXPECT_EQ(Bytes(placement, owner, round, at, bytes), expected)
              << at << " " << bytes << " " << owner << " " << round;
        }
      }
    }
  }
}

// Ranks in the same round load all cards equally.
TEST(PlacementTest, RanksInStepLoadCardsAlike) {
  for (int ranks : {2, 3, 5, 7, 8, 9, 12}) {
    const plan::Stripes stripes =
        KernelStripes(TestGeometry().slot_bytes, kCards, ranks);
    const Placement placement(TestGeometry(), stripes, ranks, kCards);
    for (uint64_t round = 0; round < 12; ++round) {
      std::vector<uint64_t> by_card(kCards);
      for (int owner = 0; owner < ranks; ++owner)
        placement.Add(owner, round, 0, 1 << 20, by_card);
      const uint64_t all =
          std::accumulate(by_card.begin(), by_card.end(), uint64_t{0});
      for (uint64_t bytes : by_card)
        EXPECT_NEAR(bytes * kCards, all, .07 * all) << ranks << " ranks";
    }
  }
}

TEST(PlacementTest, GroupsOfAnySizeHaveStripes) {
  for (int ranks : {2, 64, 100, 1024, 16384}) {
    const plan::Stripes stripes = KernelStripes(uint64_t{2} << 20, 6, ranks);
    EXPECT_LE(ranks * stripes.period(), uint64_t{2} << 20) << ranks;
    EXPECT_EQ(stripes.num_blocks == plan::kGpuBlocks, ranks <= 2048) << ranks;
  }
}

}  // namespace
}  // namespace jax_cxl::sim
