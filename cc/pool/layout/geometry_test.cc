// Sanitizers: none. The tests only compute values and compare them.

#include "cc/pool/layout/geometry.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "cc/pool/layout/layout.h"
#include "cc/pool/pool.h"
#include "cc/testing/pool/scratch.h"

namespace jax_cxl::pool {
namespace {

// The arenas of an extent start on page boundaries, and follow its control
// pages and one another without gaps. They do not leave the extent.
TEST(GeometryTest, ArenasNeverOverlap) {
  for (int world_size : {1, 2, 3, 7, 64}) {
    for (int num_paths : {1, 2, 5}) {
      for (int devices : {1, 6, 12}) {
        const auto extents = SplitExtents(
            std::vector<uint64_t>(num_paths, 1000 * kMiB + kPageBytes),
            devices);
        ASSERT_EQ(extents.size(), static_cast<size_t>(num_paths * devices));
        uint64_t end = 0;
        for (int e = 0; e < num_paths * devices; ++e) {
          EXPECT_GE(extents[e].offset, end);
          end = extents[e].offset + ControlBytes(e, world_size);
          for (int rank = 0; rank < world_size; ++rank) {
            const ByteRange arena = ArenaOf(extents, e, rank, world_size);
            EXPECT_EQ(arena.offset, end);
            EXPECT_EQ(arena.offset % kPageBytes, 0u);
            EXPECT_EQ(arena.bytes % kPageBytes, 0u);
            EXPECT_GT(arena.bytes, 0u);
            end = arena.offset + arena.bytes;
          }
          EXPECT_LE(end, extents[e].offset + extents[e].bytes);
        }
        EXPECT_LE(end, num_paths * (1000 * kMiB + kPageBytes));
      }
    }
  }
}

TEST(GeometryTest, MinimumIsEnoughAndNeeded) {
  for (int world_size = 1; world_size <= 64; ++world_size) {
    for (int num_extents : {1, 2, 3, 6, 12, 64}) {
      const uint64_t part =
          MinimumPoolBytes(world_size, num_extents) / num_extents;
      const std::vector<uint64_t> enough(num_extents, part);
      const std::vector<uint64_t> less(num_extents, part - kPageBytes);
      EXPECT_TRUE(CheckCapacity(SplitExtents(enough, 1), world_size).ok());
      const Status status = CheckCapacity(SplitExtents(less, 1), world_size);
      EXPECT_EQ(status.code(), Code::kResourceExhausted);
      EXPECT_NE(status.message().find(FormatBytes(part)), std::string::npos);
      uint64_t of_rank = 0;
      for (int e = 0; e < num_extents; ++e) {
        of_rank +=
            ArenaOf(SplitExtents(enough, 1), e, world_size - 1, world_size)
                .bytes;
      }
      EXPECT_GE(of_rank, kMiB);
    }
  }
}

TEST(GeometryTest, AutomaticSizeServesEveryShape) {
  for (int world_size : {1, 2, 8, 64, kMaxWorldSize}) {
    for (int num_paths : {1, 3, 8}) {
      for (int devices : {1, 6, 8}) {
        const std::vector<uint64_t> paths(
            num_paths, AutomaticPathBytes(world_size, num_paths, devices));
        EXPECT_TRUE(
            CheckCapacity(SplitExtents(paths, devices), world_size).ok())
            << world_size << " " << num_paths << " " << devices;
      }
    }
  }
}

TEST(GeometryTest, AutomaticSizeOfTwoRanksFitsIntoAContainer) {
  EXPECT_LE(AutomaticPathBytes(2, 1, 1), 64 * kMiB);
}

TEST(GeometryTest, OffsetsPast4GiB) {
  const auto extents = SplitExtents({uint64_t{1} << 40, uint64_t{1} << 40}, 2);
  EXPECT_EQ(extents[3].offset, (uint64_t{1} << 40) + (uint64_t{1} << 39));
  const ByteRange last = ArenaOf(extents, 3, 6, 7);
  EXPECT_LE(last.offset + last.bytes, uint64_t{1} << 41);
  EXPECT_GT(last.offset, (uint64_t{1} << 41) - (uint64_t{1} << 37));
}

TEST(GeometryTest, FormatBytes) {
  EXPECT_EQ(FormatBytes(12), "12 bytes");
  EXPECT_EQ(FormatBytes(1536 * kMiB), "1.5 GiB (1610612736 bytes)");
}

}  // namespace
}  // namespace jax_cxl::pool
