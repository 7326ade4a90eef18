// Sanitizers: address, thread

// Tests of the host's half of calls between GPUs. Models take the place of the
// devices.
#include "cc/gpu/relay/relay.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <optional>
#include <vector>

#include "cc/gpu/relay/relay_plan.h"
#include "cc/plan/planners/make_plan.h"
#include "cc/testing/devices/device_soak.h"
#include "cc/testing/pool/random_test_length.h"

namespace jax_cxl::comm {
namespace {

using cuda::DeviceStep;
using cuda::DeviceStepKind;

DeviceStep Step(DeviceStepKind kind, uint64_t round, uint64_t from, uint64_t to,
                uint64_t bytes, int first = 0, int last = 0) {
  DeviceStep step;
  step.kind = kind;
  step.round = round;
  step.from = from;
  step.to = to;
  step.bytes = bytes;
  step.first = first;
  step.last = last;
  return step;
}

TEST(FlushThreadsTest, GpusShareAQuarterOfTheCores) {
  EXPECT_EQ(FlushThreads(/*cores=*/2, /*gpus=*/1), 1);
  EXPECT_EQ(FlushThreads(8, 1), 2);
  EXPECT_EQ(FlushThreads(16, 1), 4);
  EXPECT_EQ(FlushThreads(128, 1), 4);
  EXPECT_EQ(FlushThreads(128, 8), 4);
  EXPECT_EQ(FlushThreads(16, 8), 1);
}

TEST(RelayPlanTest, PublicationsHaveWhatWasWrittenSinceTheLastOne) {
  const std::vector<DeviceStep> sending = {
      Step(DeviceStepKind::kPut, 0, 0, 0, 100),
      Step(DeviceStepKind::kPut, 1, 100, 0, 64),
      Step(DeviceStepKind::kPublish, 1, 0, 0, 0),
      Step(DeviceStepKind::kPut, 2, 164, 128, 64),
      Step(DeviceStepKind::kPut, 2, 228, 192, 10),
      Step(DeviceStepKind::kPublish, 2, 0, 0, 0),
  };
  const RelayPlan relay_plan = MakeRelayPlan({3, sending, {}}, 2, 0);
  ASSERT_EQ(relay_plan.publications.size(), 2u);
  EXPECT_EQ(relay_plan.publications[0].round, 1u);
  EXPECT_EQ(relay_plan.publications[0].ranges.size(), 2u);
  ASSERT_EQ(relay_plan.publications[1].ranges.size(), 1u);
  EXPECT_EQ(relay_plan.publications[1].ranges[0].offset, 128u);
  EXPECT_EQ(relay_plan.publications[1].ranges[0].bytes, 74u);
  EXPECT_EQ(relay_plan.last_written, 3u);
}

TEST(RelayPlanTest, ArrivalsHaveWhatIsReadOfEachMemberInTheOrderOfRounds) {
  const std::vector<DeviceStep> receiving = {
      Step(DeviceStepKind::kReduce, 1, 64, 0, 64, 0, 3),
      Step(DeviceStepKind::kGet, 0, 0, 0, 32, 2, 3),
      Step(DeviceStepKind::kGet, 2, 0, 0, 0, 0, 1),  // only waits
      Step(DeviceStepKind::kRelease, 2, 0, 0, 0),
  };
  const RelayPlan relay_plan = MakeRelayPlan({3, {}, receiving}, 3, 1);
  EXPECT_TRUE(relay_plan.arrivals[1].empty());
  ASSERT_EQ(relay_plan.arrivals[2].size(), 2u);
  EXPECT_EQ(relay_plan.arrivals[2][0].round, 0u);
  EXPECT_EQ(relay_plan.arrivals[2][1].round, 1u);
  ASSERT_EQ(relay_plan.arrivals[0].size(), 2u);
  EXPECT_TRUE(relay_plan.arrivals[0][1].ranges.empty());
  ASSERT_EQ(relay_plan.releases.size(), 1u);
  EXPECT_EQ(relay_plan.releases[0].round, 2u);
}

// The lines of a call's relay include all bytes that the GPU plan writes into
// slots, and all bytes that it reads from slots.
TEST(RelayPlanTest, CoversAllThatIsPublishedAndRetrieved) {
  for (int op = 0; op < plan::kNumOps - 2; ++op) {
    for (int ranks : {2, 3, 5}) {
      plan::Request request;
      request.op = static_cast<plan::Op>(op);
      request.num_ranks = ranks;
      request.count = request.op == plan::Op::kBarrier ? 0 : 5000;
      request.element_bytes = 4;
      if (request.op == plan::Op::kPermute)
        for (int rank = 0; rank < ranks; ++rank)
          request.sources.push_back((rank + 1) % ranks);
      plan::Geometry geometry;
      geometry.slot_bytes = 8192;
      for (int rank = 0; rank < ranks; ++rank) {
        request.rank = rank;
        const auto plan = plan::MakePlan(request, geometry);
        ASSERT_TRUE(plan.ok());
        const auto gpu_plan = cuda::MakeGpuPlan(*plan, rank, {1, 16});
        ASSERT_TRUE(gpu_plan.ok());
        const RelayPlan relay = MakeRelayPlan(*gpu_plan, ranks, rank);
        uint64_t written = 0, read = 0;
        for (const auto& publication : relay.publications)
          for (const SlotRange& range : publication.ranges)
            written += range.bytes;
        for (const auto& arrivals : relay.arrivals)
          for (const auto& arrival : arrivals)
            for (const SlotRange& range : arrival.ranges) read += range.bytes;
        EXPECT_EQ(written, gpu_plan->bytes_published) << op << ' ' << ranks;
        EXPECT_EQ(read, gpu_plan->bytes_retrieved) << op << ' ' << ranks;
      }
    }
  }
}

TEST(LineWorkersTest, DoAllOfLongWork) {
  for (int helpers : {0, 3}) {
    const pool::Coherence coherence(pool::CoherenceMode::kCoherent);
    LineWorkers workers(coherence, helpers, size_t{128} << 10);
    std::vector<std::byte> memory(10 << 20);
    const pool::Part all = {memory.data(), memory.size()};
    for (int i = 0; i < 20; ++i) {
      const auto work = workers.Start({&all, 1}, i % 2 == 0);
      while (!work->done()) workers.Help();
    }
    EXPECT_TRUE(workers.Start({}, false)->done());
  }
}

constexpr double kTimeout = 30;

TEST(RelayTest, RandomCallsOnAFlushPool) {
  if (!pool::FlushSupported()) GTEST_SKIP() << "needs cache line instructions";
  const auto report =
      soak::DeviceSoak(1, RandomTestSeconds(), std::nullopt, kTimeout);
  EXPECT_EQ(report.first_failure, "");
  EXPECT_GT(report.calls, 0u);
}

TEST(RelayTest, RandomCallsOnIncoherentHosts) {
  if (!pool::FlushSupported()) GTEST_SKIP() << "needs cache line instructions";
  for (uint64_t seed : {1, 2, 3}) {
    const auto report = soak::DeviceSoak(seed, RandomTestSeconds(),
                                         pool::Incoherence{seed, ""}, kTimeout);
    EXPECT_EQ(report.first_failure, "") << "seed " << seed;
    EXPECT_GT(report.calls, 0u);
  }
}

}  // namespace
}  // namespace jax_cxl::comm
