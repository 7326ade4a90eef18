// Sanitizers: none. It computes with values, and compares the results.

#include "cc/simulator/run.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "cc/simulator/lower.h"
#include "cc/testing/verify/verify.h"

namespace jax_cxl::sim {
namespace {

using plan::Op;

constexpr double kGB = 1e9;

Machine TestMachine(int hosts, int cards) {
  return {.hosts = hosts,
          .cards = cards,
          .gpu_out = 20 * kGB,
          .gpu_in = 20 * kGB,
          .uplink = 55 * kGB,
          .card_in = 22.5 * kGB,
          .card_out = 22.5 * kGB,
          .card_both = 36 * kGB,
          .memory = 3350 * kGB};
}

Costs TestCosts() {
  return {.start = 6e-6,
          .get_latency = .6e-6,
          .ring = .6e-6,
          .doorbell = 2.4e-6,
          .poll = .5e-6,
          .doorbell_bytes = 128};
}

plan::Request RequestOf(Op op, int ranks, uint64_t bytes) {
  plan::Request request;
  request.op = op;
  request.num_ranks = ranks;
  request.count = op == Op::kBarrier ? 0 : bytes;
  if (op == Op::kPermute) {
    for (int r = 0; r < ranks; ++r) {
      request.sources.push_back((r + ranks - 1) % ranks);
    }
  }
  return request;
}

std::vector<Op> Ops() {
  return {Op::kBarrier,  Op::kAllGather, Op::kAllReduce, Op::kReduceScatter,
          Op::kAllToAll, Op::kBroadcast, Op::kReduce,    Op::kGather,
          Op::kScatter,  Op::kPermute,   Op::kScan,      Op::kExscan};
}

double Seconds(const Result<Report>& report) {
  EXPECT_TRUE(report.ok()) << report.status().message();
  return report.ok() ? report->seconds : -1;
}

TEST(RunTest, BarrierIsStartAndDoorbellsAndPolls) {
  const Machine machine = TestMachine(4, 6);
  const Report report =
      *RunPlans(RequestOf(Op::kBarrier, 4, 0), {}, machine, TestCosts(), {}, 0);
  EXPECT_NEAR(report.seconds,
              6e-6 + .6e-6 + 2.4e-6 + .5e-6 + 3 * 128 / machine.gpu_in + .6e-6,
              1e-12);
}

// The message takes one slot. The sender writes the slot and rings. Then the
// receiver polls, reads the slot and rings.
TEST(RunTest, PermuteOfOneSlotTakesBothCopies) {
  const Machine machine = TestMachine(2, 2);
  const uint64_t bytes = 1 << 20;
  const double copy = bytes / (20 * kGB);
  EXPECT_NEAR(Seconds(RunPlans(RequestOf(Op::kPermute, 2, bytes), {}, machine,
                               TestCosts(), {}, 0)),
              6e-6 + copy + .6e-6 + 2.4e-6 + .5e-6 + .6e-6 + copy + .6e-6,
              1e-8);
}

TEST(RunTest, LongCallsRunAtTheSpeedOfTheLink) {
  const uint64_t bytes = uint64_t{1} << 30;
  const double seconds =
      Seconds(RunPlans(RequestOf(Op::kAllGather, 3, bytes / 3),
                       {.num_slots = 12, .num_devices = 6}, TestMachine(3, 6),
                       TestCosts(), {}, 0));
  EXPECT_GT(seconds, bytes / 3 * 2 / (20 * kGB));
  EXPECT_LT(seconds, bytes / 3 * 2 / (20 * kGB) * 1.05);
}

TEST(RunTest, SamplingAgreesWithRunningEverything) {
  for (int ranks : {3, 12}) {
    for (Op op : Ops()) {
      const plan::Geometry geometry{
          .slot_bytes = 256 << 10, .num_slots = 12, .num_devices = 6};
      const plan::Request request = RequestOf(op, ranks, 150 << 20);
      auto run = [&](uint64_t sample_rounds) {
        return RunPlans(request, geometry, TestMachine(ranks, 6), TestCosts(),
                        {}, sample_rounds);
      };
      const Result<Report> exact = run(0), sampled = run(48);
      EXPECT_FALSE(exact->sampled);
      EXPECT_EQ(sampled->sampled, op != Op::kBarrier);
      // The owners of a reduce keep drifting apart after the sampled rounds, so
      // the sampled result is less exact.
      EXPECT_NEAR(Seconds(sampled) / Seconds(exact), 1,
                  op == Op::kReduce ? .12 : .05)
          << plan::OpName(op) << " of " << ranks;
    }
  }
}

TEST(RunTest, CountsWhatVerifyCounts) {
  for (int ranks : {2, 3, 7, 12}) {
    for (Op op : Ops()) {
      const plan::Geometry geometry{
          .slot_bytes = 4096, .num_slots = 4, .num_devices = 3};
      const plan::Request request = RequestOf(op, ranks, 40000);
      const auto plans = plan::MakePlans(request, geometry);
      ASSERT_TRUE(plans.ok());
      const auto traffic =
          plan::Verify(request, geometry, *plans, {.num_devices = 3});
      ASSERT_TRUE(traffic.ok()) << traffic.status().message();
      const Counted counted = *CountBytes(request, geometry, {}, 3);
      plan::PoolBytes rank, card;
      for (const plan::PoolBytes& bytes : traffic->by_rank) {
        rank.written = std::max(rank.written, bytes.written);
        rank.read = std::max(rank.read, bytes.read);
      }
      for (const plan::PoolBytes& bytes : traffic->by_device) {
        card.written = std::max(card.written, bytes.written);
        card.read = std::max(card.read, bytes.read);
      }
      EXPECT_EQ(counted.most_by_rank, rank) << plan::OpName(op);
      EXPECT_EQ(counted.most_by_card, card) << plan::OpName(op);
    }
  }
}

// All gets of a round take only one poll and one latency. Each peer adds the
// time to read the line of its doorbell and its data.
TEST(RunTest, GetsOfARoundAreSideBySide) {
  auto run = [](int ranks) {
    return Seconds(RunPlans(RequestOf(Op::kGather, ranks, 32 << 10), {},
                            TestMachine(ranks, 6), TestCosts(), {}, 0));
  };
  EXPECT_NEAR(run(6) - run(3), 3 * (128 + (32 << 10)) / (20 * kGB), 1e-9);
}

// The fence before a doorbell may take longer than a copy, but the next copy
// does not wait for it.
TEST(RunTest, CopiesGoOnWhileDoorbellsAreRung) {
  auto run = [](double ring) {
    Costs costs = TestCosts();
    costs.ring = ring;
    return Seconds(RunPlans(RequestOf(Op::kPermute, 2, 64 << 20),
                            {.num_slots = 12}, TestMachine(2, 2), costs, {},
                            0));
  };
  // The time of a fence is paid only before the first get and after the last
  // get.
  EXPECT_NEAR(run(10e-6) - run(0), 2 * 10e-6, 1.5e-6);
}

// If a message takes one slot, its lines are written back before the doorbell
// rings, and dropped before the receiver copies. If it takes several slots,
// copies of other slots continue meanwhile.
TEST(RunTest, ProcessorsFlushBesideTheCopies) {
  const uint64_t bytes = 1 << 20;
  auto run = [](uint64_t count, double write_back, double drop) {
    Costs costs = TestCosts();
    costs.write_back_rate = write_back;
    costs.drop_rate = drop;
    return Seconds(RunPlans(RequestOf(Op::kPermute, 2, count),
                            {.num_slots = 12}, TestMachine(2, 2), costs, {},
                            0));
  };
  EXPECT_NEAR(run(bytes, 50 * kGB, 0) - run(bytes, 0, 0), bytes / (50 * kGB),
              1e-8);
  EXPECT_NEAR(run(bytes, 0, 80 * kGB) - run(bytes, 0, 0), bytes / (80 * kGB),
              1e-8);
  EXPECT_LT(run(64 * bytes, 50 * kGB, 80 * kGB) / run(64 * bytes, 0, 0), 1.02);
  // If the processors write back more slowly than the links copy, the rate of
  // the write-backs determines the time.
  EXPECT_NEAR(run(64 * bytes, 10 * kGB, 0), 64 * bytes / (10 * kGB), 4e-4);
}

// A flagged slot has no room for the doorbell words of 1,024 ranks. So the call
// runs without flags.
TEST(RunTest, ManyRanksHaveNoFlags) {
  const Machine machine = TestMachine(1024, 1);
  const plan::Request request = RequestOf(Op::kAllGather, 1024, 1);
  EXPECT_GT(
      Seconds(RunPlans(request, {}, machine, TestCosts(), {.flags = true}, 0)),
      0);
}

TEST(RunTest, FlagsNeedNoFenceAndNoDoorbell) {
  const plan::Request request = RequestOf(Op::kAllGather, 3, 32);
  auto run = [&](bool flags) {
    return Seconds(RunPlans(request, {}, TestMachine(3, 6), TestCosts(),
                            {.flags = flags}, 0));
  };
  // Without flags, the call also takes the time of two fences and a poll.
  EXPECT_NEAR(run(false) - run(true), 2 * .6e-6 + .5e-6, .02e-6);
}

// A flagged call moves twice the bytes, but its reader is only a few lines
// behind the writer.
TEST(RunTest, FlaggedDataAreReadAsTheyArrive) {
  const plan::Request request = RequestOf(Op::kPermute, 2, 16 << 10);
  const double copy = 2 * (16 << 10) / (20 * kGB);
  EXPECT_NEAR(Seconds(RunPlans(request, {}, TestMachine(2, 2), TestCosts(),
                               {.flags = true}, 0)),
              6e-6 + copy + 2.4e-6 + .6e-6, .05e-6);
}

// Flags double the bytes of a call. In a long call this would take longer than
// a doorbell, so the option has no effect.
TEST(RunTest, LongCallsHaveNoFlags) {
  const plan::Request request = RequestOf(Op::kAllGather, 3, 64 << 10);
  auto run = [&](bool flags) {
    return Seconds(RunPlans(request, {}, TestMachine(3, 6), TestCosts(),
                            {.flags = flags}, 0));
  };
  EXPECT_EQ(run(true), run(false));
}

TEST(RunTest, OwnSlotsAreReusedOnlyWhenReleased) {
  // With two slots instead of many, a rank waits for its readers.
  auto run = [&](int slots) {
    return Seconds(RunPlans(RequestOf(Op::kPermute, 2, 64 << 20),
                            {.num_slots = slots}, TestMachine(2, 2),
                            TestCosts(), {}, 0));
  };
  EXPECT_GT(run(2), run(8) * 1.02);
}

// GPUs that have their own links are not slowed down by the other GPUs of their
// host, as long as the cards are fast enough. GPUs that share one link share
// its rate.
TEST(RunTest, GpusShareTheLinksOfTheirHosts) {
  constexpr int kHosts = 3, kGpus = 4;
  auto run = [&](int gpus, int links) {
    const plan::Request request =
        RequestOf(Op::kPermute, kHosts * gpus, uint64_t{256} << 20);
    Machine machine = TestMachine(kHosts, 1);
    machine.gpus_per_host = gpus;
    machine.links_per_host = links;
    machine.card_in = machine.card_out = machine.card_both = 1000 * kGB;
    return Seconds(
        RunPlans(request, {.num_slots = 12}, machine, TestCosts(), {}, 0));
  };
  const double alone = run(1, 1);
  EXPECT_NEAR(run(kGpus, kGpus) / alone, 1, 1e-6);
  EXPECT_NEAR(run(kGpus, 2) / alone, 1, 1e-6);  // 2 x 20 of 55 GB/s
  EXPECT_NEAR(run(kGpus, 1) / alone, 4 * 20 / 55., .02);
}

TEST(RunTest, RanksHaveToFillTheMachine) {
  Machine machine = TestMachine(3, 6);
  machine.gpus_per_host = 2;
  const plan::Request request = RequestOf(Op::kAllGather, 3, 1024);
  EXPECT_EQ(RunPlans(request, {}, machine, TestCosts(), {}, 0).status().code(),
            Code::kInvalidArgument);
}

}  // namespace
}  // namespace jax_cxl::sim
