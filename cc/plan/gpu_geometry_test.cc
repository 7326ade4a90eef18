#include "cc/plan/gpu_geometry.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "cc/plan/planners/make_plan.h"
#include "cc/testing/reference/plans.h"

namespace jax_cxl::plan {
namespace {

// The engine relies on this: it executes each short call as a single round of
// the ring for short messages.
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
  // The limit of 1000 bytes applies to the blocks of all ranks together, and
  // also to the input and output of one rank together.
  EXPECT_TRUE(IsFlagged(MakeRequest(Op::kBroadcast, 4, 250, 1), 1000));
  EXPECT_FALSE(IsFlagged(MakeRequest(Op::kBroadcast, 4, 251, 1), 1000));
  EXPECT_TRUE(IsFlagged(MakeRequest(Op::kAllToAll, 4, 125, 1), 1000));
  EXPECT_FALSE(IsFlagged(MakeRequest(Op::kAllToAll, 4, 126, 1), 1000));
}

TEST(GpuGeometryTest, TwoGpusExchangeABlockInTwoChunks) {
  const auto rounds = [](Op op, int n, uint64_t kib) {
    const Request request = MakeRequest(op, n, kib << 10, 1);
    Geometry geometry = GpuGeometry(1, n);
    geometry.min_chunk_bytes = uint64_t{512} << 10;
    geometry.min_chunk_bytes = KernelMinChunkBytes(request, geometry);
    return MakePlan(request, geometry)->rounds;
  };
  for (Op op : {Op::kAllGather, Op::kAllToAll, Op::kAllReduce}) {
    EXPECT_EQ(rounds(op, 2, 511), 1u) << OpName(op);
    EXPECT_EQ(rounds(op, 2, 512), 2u) << OpName(op);
    EXPECT_EQ(rounds(op, 2, 1024), 2u) << OpName(op);
    EXPECT_EQ(rounds(op, 2, 2048), 4u) << OpName(op);
  }
  EXPECT_EQ(rounds(Op::kBroadcast, 2, 512), 1u);
  EXPECT_EQ(rounds(Op::kReduceScatter, 2, 512), 2u);  // a part for each rank
  EXPECT_EQ(rounds(Op::kAllGather, 4, 512), 1u);
}

// If each of the 64 blocks uses the slot after the previous block's slot, a
// round lies on all devices almost evenly. With one device, all blocks of a
// round use the same slot.
TEST(GpuGeometryTest, ARoundLiesOnAllDevices) {
  for (int devices : {1, 2, 3, 4, 5, 6}) {
    const Geometry geometry = GpuGeometry(devices, 8);
    const Stripes stripes =
        GpuStripes(geometry.slot_bytes, devices, 8, kGpuBlocks);
    EXPECT_EQ(geometry.num_devices, devices);
    EXPECT_EQ(geometry.device_parts, devices > 1 ? 64 : 1);
    for (uint64_t round : {0, 1, 7}) {
      std::vector<int> blocks(devices);
      for (uint32_t block = 0; block < stripes.num_blocks; ++block) {
        ++blocks[SlotOfBlock(round, block, stripes.slot_step,
                             geometry.num_slots) %
                 devices];
      }
      const auto [least, most] =
          std::minmax_element(blocks.begin(), blocks.end());
      EXPECT_LE(*most - *least, devices == 5 ? 2 : 1) << devices;
    }
  }
  EXPECT_EQ(GpuStripes(2 << 20, 1, 8, kGpuBlocks).slot_step, 0u);
}

// Each rank's part of a slot starts with a unit of block 0. So a slot must have
// room for at least one period (a unit of every block) for each rank, and units
// must not be smaller than kSlotAlignment.
TEST(GpuGeometryTest, PartsStartWithTheFirstBlock) {
  for (int n : {1, 2, 3, 8, 12, 64}) {
    const Stripes stripes = GpuStripes(kGpuSlotBytes, 6, n, kGpuBlocks);
    EXPECT_GE(stripes.unit_bytes, kSlotAlignment);
    EXPECT_LE(n * stripes.period(), kGpuSlotBytes) << n;
  }
}

}  // namespace
}  // namespace jax_cxl::plan
