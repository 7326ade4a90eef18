// Sanitizers: address, thread

#include <gtest/gtest.h>

#include <chrono>
#include <iostream>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "cc/testing/faults/fault_cycles.h"
#include "cc/testing/faults/fault_sweep.h"
#include "cc/testing/pool/random_test_length.h"

namespace jax_cxl::comm::faults {
namespace {

std::string Failures(const Tally& tally) {
  std::string text;
  for (const std::string& failure : tally.failures) text += failure + "\n";
  return text;
}

// Runs a random part of fault_sweep_benchmark.
TEST(FaultTest, FreshSliceOfTheSweep) {
  const uint64_t seed = std::random_device()();
  std::cout << "seed " << seed << std::endl;
  soak::Random random(seed);
  Tally tally;
  const double until = Now() + RandomTestSeconds();
  const auto more = [&] { return Now() < until || tally.reached <= 10; };
  while (more()) {
    const auto op = static_cast<plan::Op>(random() % plan::kNumOps);
    const int ranks = static_cast<int>(soak::Pick(random, 2, kMaxRanks));
    const int victim = static_cast<int>(soak::Pick(random, 0, ranks - 1));
    const Coverage coverage = {.all_actions = true, .random_times = 8};
    for (const Case& item : CasesOf(op, ranks, victim, coverage, random)) {
      RunCase(item, &tally);
      if (!more()) break;
    }
  }
  std::cout << tally.cases << " faults" << std::endl;
  EXPECT_TRUE(tally.good()) << Failures(tally);
}

Case AllReduce(const std::string& fault) {
  Case item;
  item.op = plan::Op::kAllReduce;
  item.fault = *fault::Parse(fault);
  return item;
}

// Checks that the sweep notices a hang.
TEST(FaultTest, SeesAHang) {
  Case item = AllReduce("rank=1,point=start,action=stop");
  item.timeout_s = 1000;
  const JobResult result = Job(item, /*deadline_s=*/3).Run();
  Tally tally;
  Judge(item, result, &tally).Run();
  EXPECT_EQ(tally.hangs, 1u);
}

// Checks that the sweep notices an error that names the wrong rank, an error
// that comes late, and wrong values.
TEST(FaultTest, SeesThatTheWrongRankIsNamed) {
  const Case item = AllReduce("rank=1,point=start,action=kill");
  JobResult result = Job(item, kDeadline).Run();
  Tally right;
  Judge(item, result, &right).Run();
  EXPECT_TRUE(right.good()) << Failures(right);
  ASSERT_EQ(right.survivors_with_error, 1u);

  ++result.ranks[1].pid;
  Tally tally;
  Judge(item, result, &tally).Run();
  EXPECT_EQ(tally.misjudged, 1u);
  --result.ranks[1].pid;
  result.ranks[0].ended_at += 2 * kPromptly;
  result.ranks[0].wrong = 3;
  Judge(item, result, &tally).Run();
  EXPECT_EQ(tally.late, 1u);
  EXPECT_EQ(tally.wrong, 3u);
}

// The fault is in the first call, which is large enough to use slots. A later
// call is less suitable: all later calls are submitted together, and small ones
// succeed even if a rank dies after it has submitted them.
TEST(FaultTest, SaysWhatTheVictimDidLast) {
  if (pool::Incoherence::FromEnvironment())
    GTEST_SKIP() << "other hosts know only what a killed rank's last heartbeat "
                    "has published";
  Case item = AllReduce("rank=1,call=1,point=start,action=kill");
  item.seed = 9;  // with this seed, the first call has some kilobytes
  const JobResult result = Job(item, kDeadline).Run();
  const std::string message = result.ranks[0].message;
  EXPECT_NE(message.find("it was in its call "), message.npos) << message;
  EXPECT_NE(message.find("which all ranks had started"), message.npos)
      << message;
}

TEST(FaultCyclesTest, JobsKilledAsAWholeLeaveNothing) {
  const int descriptors = OpenDescriptors();
  soak::Random random(std::random_device{}());
  for (int cycle = 0; cycle < RandomTestCount(20); ++cycle)
    StartAndCrash(cycle, 2 + cycle % 3,
                  std::chrono::microseconds(soak::Pick(random, 0, 20'000)));
  // Another process may be sweeping at the same time. It may have locked a file
  // that it is about to remove, so look several times.
  Leftovers left;
  for (int i = 0; i < 1000 && (i == 0 || left.files > 0); ++i) {
    if (i > 0) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    pool::SweepLeftovers();
    left = FindLeftovers(kCyclePrefix, descriptors);
  }
  EXPECT_EQ(left.files, 0);
  EXPECT_EQ(left.sockets, 0);
  EXPECT_EQ(left.processes, 0);
  EXPECT_EQ(left.descriptors, 0);
}

}  // namespace
}  // namespace jax_cxl::comm::faults
