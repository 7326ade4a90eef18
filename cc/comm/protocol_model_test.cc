// Every order of every step of small groups, with a rank dying anywhere:
// nothing unread is overwritten, nothing stale is read, every live rank ends.
#include <gtest/gtest.h>

#include <cstdlib>
#include <iostream>
#include <string>
#include <utility>
#include <vector>

#include "cc/comm/protocol_model_search_testing.h"

namespace jax_cxl::comm::model {
namespace {

// The plans of all ranks for a call of as many rounds; 0: an eager call.
std::vector<plan::Plan> Plans(int ranks, plan::Op op, int rounds,
                              int num_slots) {
  std::vector<plan::Plan> plans(ranks);
  if (rounds == 0) return plans;
  for (int rank = 0; rank < ranks; ++rank) {
    plan::Request request;
    request.op = op;
    request.num_ranks = ranks;
    request.rank = rank;
    plan::Geometry geometry;
    geometry.slot_bytes = ranks * plan::kSlotAlignment;
    request.count = geometry.slot_bytes * rounds;
    geometry.num_slots = num_slots;
    Result<plan::Plan> plan = plan::MakePlan(request, geometry);
    if (!plan.ok()) std::abort();
    EXPECT_EQ(plan->rounds, static_cast<uint64_t>(rounds));
    plans[rank] = *std::move(plan);
  }
  return plans;
}

struct Named {
  const char* name;
  Configuration configuration;
};

// Small rings, so that each of them is full in some order of steps.
std::vector<Named> Configurations() {
  using plan::Op;
  // A call of more rounds than slots, an eager one, one more, in two orders.
  Configuration two;
  two.calls = {Plans(2, Op::kAllGather, 3, 2), Plans(2, Op::kBarrier, 0, 2),
               Plans(2, Op::kAllReduce, 1, 2)};
  two.orders = {{0, 1, 2}, {2, 0, 1}};
  // Whose leader needs nothing from its follower.
  Configuration ahead;
  ahead.calls = {Plans(2, Op::kBroadcast, 1, 3), Plans(2, Op::kBroadcast, 1, 3),
                 Plans(2, Op::kBroadcast, 1, 3)};
  ahead.orders = {{0, 1, 2}, {2, 1, 0}};
  ahead.num_slots = 3;
  Configuration three;
  three.ranks = 3;
  three.calls = {Plans(3, Op::kBroadcast, 3, 2)};
  three.orders = {{0}, {0}, {0}};
  Configuration two_die = three;
  two_die.calls = {Plans(3, Op::kAllGather, 1, 2)};
  two_die.crashes = 2;
  // That read two submissions before they say so.
  Configuration lazy;
  lazy.calls = {Plans(2, Op::kBarrier, 0, 2), Plans(2, Op::kBarrier, 0, 2),
                Plans(2, Op::kBarrier, 0, 2), Plans(2, Op::kBarrier, 0, 2)};
  lazy.orders = {{0, 1, 2, 3}, {1, 0, 3, 2}};
  lazy.reads_per_word = 2;
  Configuration eager;
  eager.ranks = 3;
  eager.calls = {Plans(3, Op::kBarrier, 0, 2), Plans(3, Op::kBarrier, 0, 2),
                 Plans(3, Op::kBarrier, 0, 2)};
  eager.orders = {{0, 1, 2}, {0, 1, 2}, {1, 0, 2}};
  eager.submission_ring = 1;
  return {{"TwoRanks", two},     {"LeaderAhead", ahead}, {"LazyReaders", lazy},
          {"ThreeRanks", three}, {"TwoDie", two_die},    {"EagerCalls", eager}};
}

std::string Text(const std::vector<std::string>& trace) {
  std::string text;
  for (const std::string& line : trace) text += line + "\n";
  return text;
}

class ProtocolModelTest : public testing::TestWithParam<Named> {};

TEST_P(ProtocolModelTest, IsRightInEveryOrder) {
  const Outcome outcome = Explore(GetParam().configuration);
  std::cout << outcome.states << " states, " << outcome.transitions << " steps"
            << std::endl;
  EXPECT_EQ(outcome.wrong, "") << Text(outcome.trace);
  EXPECT_GT(outcome.states, 1000u);
}

INSTANTIATE_TEST_SUITE_P(Configurations, ProtocolModelTest,
                         testing::ValuesIn(Configurations()),
                         [](const auto& info) { return info.param.name; });

// What the model says can be wrong.
class BrokenModelTest : public testing::TestWithParam<Fault> {};

TEST_P(BrokenModelTest, IsFound) {
  Outcome outcome;
  for (Named& named : Configurations()) {
    named.configuration.fault = GetParam();
    outcome = Explore(named.configuration);
    if (outcome.wrong.empty()) continue;
    std::cout << named.name << ": " << outcome.wrong << " after "
              << outcome.trace.size() << " steps" << std::endl;
    return;
  }
  FAIL() << "nothing shows that it is missing";
}

std::vector<Fault> Faults() {
  std::vector<Fault> faults;
  for (int fault = 1; fault < kNumFaults; ++fault)
    faults.push_back(static_cast<Fault>(fault));
  return faults;
}
INSTANTIATE_TEST_SUITE_P(Faults, BrokenModelTest, testing::ValuesIn(Faults()),
                         [](const auto& info) {
                           return std::string(FaultName(info.param));
                         });

}  // namespace
}  // namespace jax_cxl::comm::model
