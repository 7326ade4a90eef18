// Sanitizers: none. Making plans of all sizes takes minutes under a sanitizer.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "cc/plan/planners/make_plan.h"
#include "cc/testing/reference/plans.h"
#include "cc/testing/verify/debug_string.h"

namespace jax_cxl::plan {
namespace {

// Cycles through the values of a parameter, so that a test needs no loop over
// them. If the numbers of values have no common factors, every value occurs
// together with every value of the other parameters.
template <typename T>
class Cycle {
 public:
  explicit Cycle(std::vector<T> values) : values_(std::move(values)) {}
  T Next() { return values_[next_++ % values_.size()]; }

 private:
  std::vector<T> values_;
  size_t next_ = 0;
};

bool ReadsSlots(const Step& step) {
  return step.kind == StepKind::kGet || step.kind == StepKind::kReduce ||
         step.kind == StepKind::kReduceToSlot;
}

bool WritesSlot(const Step& step) {
  return step.kind == StepKind::kPut || step.kind == StepKind::kPutOutput ||
         step.kind == StepKind::kReduceToSlot;
}

class Planners : public testing::TestWithParam<Op> {};

TEST_P(Planners, VerifyForAllSizesAndRings) {
  // The numbers of values (7, 5, 11 and 3) have no common factors with each
  // other or with the lengths of the loops.
  Cycle<uint32_t> element_bytes({4, 1, 2, 8, 16, 12, 3});
  Cycle<uint64_t> all_read_bytes({0, 0, 300, 1 << 20, 0});
  Cycle<uint64_t> start_round(
      {0, 1, 7, 1000003, uint64_t{1} << 40, 2, 5, 12, 3, 11, 64});
  Cycle<int> extra_lines({0, 1, 40});
  int root = 0;
  for (int n = 1; n <= 17; ++n) {
    for (uint64_t count :
         {0, 1, 2, 7, 31, 32, 33, 64, 127, 129, 400, 1001, 2999}) {
      for (int slots : {2, 3, 4, 6, 12}) {
        Geometry geometry;
        geometry.num_slots = slots;
        geometry.slot_bytes = kSlotAlignment * (n + extra_lines.Next());
        geometry.all_read_bytes = all_read_bytes.Next();
        Request request =
            MakeRequest(GetParam(), n, count, element_bytes.Next(), root++ % n);
        if (GetParam() == Op::kPermute) {
          request.sources = Sources(n, root / 5 % 4);
        }
        ExpectVerified(request, geometry, {.start_round = start_round.Next()});
        if (HasFailure()) return;
      }
    }
  }
}

TEST_P(Planners, VerifyForAllRoots) {
  for (int n : {2, 3, 4, 7}) {
    for (int root = 0; root < n; ++root) {
      for (int slots = 2; slots <= 12; ++slots) {
        for (uint64_t all_read_bytes : {0, 1 << 20}) {
          const Geometry geometry{.slot_bytes = 1024,
                                  .num_slots = slots,
                                  .all_read_bytes = all_read_bytes};
          ExpectVerified(MakeRequest(GetParam(), n, 3001, 4, root), geometry);
        }
      }
    }
  }
}

// Tests fields of the geometry that change the form of a plan, but not its
// result.
TEST_P(Planners, VerifyForChunksAndDevices) {
  for (int n : {2, 3, 5, 9}) {
    for (int devices : {1, 3, 6}) {
      for (int slots : {2, 5, 12}) {
        for (uint64_t min_chunk_bytes : {0, 128, 3000}) {
          const Geometry geometry{.slot_bytes = 4096,
                                  .num_slots = slots,
                                  .all_read_bytes = 100,
                                  .num_devices = devices,
                                  .min_chunk_bytes = min_chunk_bytes};
          for (uint64_t count : {1, 700, 9001, 40000}) {
            ExpectVerified(MakeRequest(GetParam(), n, count, 4, n / 2),
                           geometry, {.num_devices = devices});
          }
        }
      }
    }
  }
}

// In a pool of several devices, kernels use geometries like these, whose rounds
// have 64 parts.
TEST_P(Planners, VerifyForRoundsOnAllDevices) {
  for (int n : {2, 3, 8, 13}) {
    for (int devices : {2, 6}) {
      for (int slots : {2, 7, 12}) {
        const Geometry geometry{.slot_bytes = 4096,
                                .num_slots = slots,
                                .all_read_bytes = 100,
                                .num_devices = devices,
                                .device_parts = 64,
                                .min_chunk_bytes = 128};
        for (uint64_t count : {1, 700, 9001, 40000}) {
          ExpectVerified(MakeRequest(GetParam(), n, count, 4, n / 2), geometry);
        }
      }
    }
  }
}

TEST(ReverseTest, ScansVerifyInReverse) {
  for (Op op : {Op::kScan, Op::kExscan}) {
    for (int n : {1, 2, 3, 5, 16}) {
      for (uint64_t count : {0, 1, 100, 3001}) {
        Request request = MakeRequest(op, n, count);
        request.reverse = true;
        ExpectVerified(request, Geometry{.slot_bytes = 2048, .num_slots = 2});
      }
    }
  }
}

TEST_P(Planners, VerifyFor64Ranks) {
  for (int slots : {2, 4}) {
    for (uint64_t count : {0, 1, 63, 5000, 20001}) {
      const Geometry geometry{
          .slot_bytes = 64 * 256, .num_slots = slots, .all_read_bytes = 100};
      ExpectVerified(MakeRequest(GetParam(), 64, count, 4, 63), geometry);
    }
  }
}

// With blocks of this size, offsets need far more than 32 bits.
TEST_P(Planners, VerifyForBlocksOfATebibyte) {
  const Geometry geometry{.slot_bytes = uint64_t{8} << 30, .num_slots = 3};
  ExpectVerified(MakeRequest(GetParam(), 5, (uint64_t{1} << 40) / 16 - 1, 16),
                 geometry);
}

TEST_P(Planners, StayCompact) {
  // The larger of input and output has 4 GiB, which go through slots of 1 MiB.
  Request request = MakeRequest(GetParam(), 8, uint64_t{1} << 30);
  const uint64_t larger = std::max(InputBytes(request), OutputBytes(request));
  if (larger > uint64_t{4} << 30) request.count /= 8;
  if (MovesRows(request.op))
    request.rows = {request.count, 8 * request.count, 1};
  for (int rank : {0, 7}) {
    request.rank = rank;
    const Result<Plan> plan = MakePlan(request, {.num_slots = 2});
    ASSERT_TRUE(plan.ok()) << plan.status().message();
    EXPECT_LT(plan->steps.size(), 100'000u);
  }
}

// A rank releases all rounds right after its last read. A rank that reads
// nothing does so at once, so that it does not delay ranks that write.
TEST_P(Planners, ReleaseWithTheLastRead) {
  for (int n : {2, 5}) {
    Request request = MakeRequest(GetParam(), n, 2000);
    for (request.rank = 0; request.rank < n; ++request.rank) {
      const Result<Plan> plan =
          MakePlan(request, {.slot_bytes = 1024, .all_read_bytes = 0});
      ASSERT_TRUE(plan.ok()) << plan.status().message();
      const std::vector<Step>& steps = plan->steps;
      auto releases = [](const Step& step) {
        return step.kind == StepKind::kRelease;
      };
      if (std::none_of(steps.begin(), steps.end(), ReadsSlots)) {
        EXPECT_TRUE(releases(steps.front())) << DebugString(*plan);
        EXPECT_EQ(std::count_if(steps.begin(), steps.end(), releases), 1);
        EXPECT_EQ(steps.front().round + 1, plan->rounds);
      } else {
        const auto last =
            std::find_if(steps.rbegin(), steps.rend(), ReadsSlots);
        EXPECT_TRUE(releases(*std::prev(last))) << DebugString(*plan);
        EXPECT_EQ(std::prev(last)->round + 1, plan->rounds);
      }
    }
  }
}

// Engines that divide slots among workers rely on part_alignment.
TEST_P(Planners, StartPartsOnTheirAlignment) {
  for (int n = 2; n <= 5; ++n) {
    for (uint64_t alignment : {128, 512, 1536}) {
      const Geometry geometry{.slot_bytes = 2 * n * alignment + 128,
                              .all_read_bytes = 0,
                              .part_alignment = alignment};
      for (uint64_t count : {1, 33, 500, 9001}) {
        Request request = MakeRequest(GetParam(), n, count, 4, n - 1);
        ExpectVerified(request, geometry);
        for (request.rank = 0; request.rank < n; ++request.rank) {
          const Result<Plan> plan = MakePlan(request, geometry);
          ASSERT_TRUE(plan.ok()) << plan.status().message();
          for (const Step& step : plan->steps) {
            if (ReadsSlots(step)) {
              ASSERT_EQ(step.from % alignment, 0u) << DebugString(step);
            }
            if (WritesSlot(step)) {
              ASSERT_EQ(step.to % alignment, 0u) << DebugString(step);
            }
          }
        }
      }
    }
  }
}

// Short tables of slices share round 0 with the rows, and long tables have
// rounds of their own. In both cases, a rank has all tables before any row.
TEST(PlanTest, TablesOfSlicesComeFirst) {
  for (int n : {2, 3, 5}) {
    for (uint64_t slices : {1, 7, 100}) {
      for (uint64_t count : {1, 33, 900}) {
        for (int num_slots : {2, 3}) {
          Request request = MakeRequest(Op::kRaggedAllToAll, n, count);
          request.rows.slices = slices;
          request.rows.slice_bytes = 4 * n * slices * sizeof(int64_t);
          for (uint64_t slot_bytes : {1024, 8192}) {
            const Geometry geometry{.slot_bytes = slot_bytes,
                                    .num_slots = num_slots};
            ExpectVerified(request, geometry);
            for (request.rank = 0; request.rank < n; ++request.rank) {
              const Result<Plan> plan = MakePlan(request, geometry);
              ASSERT_TRUE(plan.ok()) << plan.status().message();
              // No row moves to the output before the tables of all peers have
              // arrived.
              const uint64_t rows = n * count * 4;
              uint64_t missing = (n - 1) * request.rows.slice_bytes;
              for (const Step& step : plan->steps) {
                if (step.kind != StepKind::kGet && step.kind != StepKind::kCopy)
                  continue;
                if (step.to < rows) {
                  EXPECT_EQ(missing, 0u) << DebugString(step);
                }
                if (step.to >= rows && step.kind == StepKind::kGet)
                  missing -= step.bytes;
              }
              EXPECT_EQ(missing, 0u);
            }
          }
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Ops, Planners, testing::ValuesIn(AllOps()),
                         [](const auto& info) {
                           return std::string(OpName(info.param));
                         });

TEST(PlanTest, PublishesARoundBeforeItRetrievesTheLast) {
  const Result<Plan> plan = MakePlan(MakeRequest(Op::kAllGather, 2, 300, 1),
                                     {.slot_bytes = 256, .num_slots = 2});
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(DebugString(*plan),
            "2 rounds, 10 steps\n"
            "put round 0 input[0, 256) -> slot[0, 256)\n"
            "publish round 0\n"
            "copy input[0, 256) -> output[0, 256)\n"
            "put round 1 input[256, 300) -> slot[0, 44)\n"
            "publish round 1\n"
            "copy input[256, 300) -> output[256, 300)\n"
            "get round 0 rank 1 slot[0, 256) -> output[300, 556)\n"
            "release round 0\n"
            "get round 1 rank 1 slot[0, 44) -> output[556, 600)\n"
            "release round 1\n");
}

TEST(PlanTest, ChunksOfShortMessagesOverlap) {
  Geometry geometry{.min_chunk_bytes = 16 << 10};
  auto rounds = [&](Op op, uint64_t bytes) {
    return MakePlan(MakeRequest(op, 3, bytes, 1), geometry)->rounds;
  };
  EXPECT_EQ(rounds(Op::kAllGather, 16 << 10), 1u);
  EXPECT_EQ(rounds(Op::kAllGather, 32 << 10), 2u);
  EXPECT_EQ(rounds(Op::kAllGather, 1 << 20), kPipelineChunks);
  EXPECT_EQ(rounds(Op::kAllGather, 64 << 20), 64u);  // chunks are full slots
  // In these operations of three ranks, a slot has two parts, which different
  // ranks read.
  EXPECT_EQ(rounds(Op::kAllToAll, 16 << 10), 2u);
  EXPECT_EQ(rounds(Op::kScatter, 16 << 10), 2u);
  // An all-reduce of 64 KiB is one chunk, and one of 96 KiB is two. Each chunk
  // has a round for its inputs and a round for its results. One more round is
  // empty: it would carry the inputs of a further chunk.
  EXPECT_EQ(rounds(Op::kAllReduce, 64 << 10), 3u);
  EXPECT_EQ(rounds(Op::kAllReduce, 96 << 10), 5u);
  geometry.num_slots = 12;
  EXPECT_EQ(rounds(Op::kAllGather, 1 << 20), 12u);
  geometry.min_chunk_bytes = 0;
  EXPECT_EQ(rounds(Op::kAllGather, 1 << 20), 1u);
}

TEST(PlanTest, DoesNotDependOnTheRingExceptInTwoExchanges) {
  for (Op op : AllOps()) {
    const Request request = MakeRequest(op, 4, 5000);
    const Geometry two{.slot_bytes = 1024, .num_slots = 2};
    const Geometry twelve{.slot_bytes = 1024, .num_slots = 12};
    const std::string a = DebugString(*MakePlan(request, two));
    const std::string b = DebugString(*MakePlan(request, twelve));
    EXPECT_EQ(a == b, op != Op::kReduce && op != Op::kAllReduce) << OpName(op);
  }
}

TEST(PlanTest, CountZeroHasOneRoundAndNoData) {
  for (Op op : AllOps()) {
    if (op == Op::kBarrier) continue;
    const Result<Plan> plan = MakePlan(MakeRequest(op, 5, 0), {});
    ASSERT_TRUE(plan.ok());
    EXPECT_EQ(DebugString(*plan), "1 rounds, 1 steps\nrelease round 0\n");
  }
}

TEST(PlanTest, NamesAreDistinct) {
  std::vector<std::string> names;
  for (Op op : AllOps()) names.emplace_back(OpName(op));
  for (int kind = 0; kind <= static_cast<int>(StepKind::kRelease); ++kind) {
    // Leave out the only step whose name is also the name of an operation.
    const auto name = StepKindName(static_cast<StepKind>(kind));
    if (name != "reduce") names.emplace_back(name);
  }
  std::sort(names.begin(), names.end());
  EXPECT_EQ(std::adjacent_find(names.begin(), names.end()), names.end());
  EXPECT_EQ(OpName(static_cast<Op>(99)), "unknown op");
  EXPECT_EQ(StepKindName(static_cast<StepKind>(99)), "unknown step");
}

}  // namespace
}  // namespace jax_cxl::plan
