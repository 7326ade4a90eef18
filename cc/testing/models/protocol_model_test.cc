// Sanitizers: none. It visits millions of states: minutes with a sanitizer.

// Tries every order of every step of small groups, with a death of one rank at
// any point. Checks that no unread data are overwritten, that no old data are
// read, and that every live rank ends.
#include "cc/testing/models/protocol_model.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "cc/plan/planners/make_plan.h"
#include "cc/testing/models/search_testing.h"

namespace jax_cxl::comm::model {
namespace {

using plan::Op;

// Returns one rank's plan. With several parts, the plan has two exchanges:
// ranks first reduce data from slots, and then exchange the results.
plan::Plan PlanFor(int ranks, int rank, Op op, int rounds, int num_slots,
                   int parts) {
  plan::Request request;
  request.op = op;
  request.num_ranks = ranks;
  request.rank = rank;
  plan::Geometry geometry;
  geometry.slot_bytes = ranks * plan::kSlotAlignment;
  geometry.num_slots = num_slots;
  request.count = geometry.slot_bytes * rounds;
  if (parts > 1) {
    geometry.all_read_bytes = 0;
    request.count = parts * plan::kSlotAlignment * rounds / 2;
  }
  Result<plan::Plan> plan = plan::MakePlan(request, geometry);
  if (!plan.ok()) std::abort();
  EXPECT_EQ(plan->rounds, static_cast<uint64_t>(rounds));
  return *std::move(plan);
}

// Returns a call that uses slots.
ModelCall InSlots(int ranks, Op op, int rounds, int num_slots, int parts = 1) {
  ModelCall call;
  for (int rank = 0; rank < ranks; ++rank)
    call.plans.push_back(PlanFor(ranks, rank, op, rounds, num_slots, parts));
  return call;
}

// Returns a call whose data travel in the submissions.
ModelCall Eager(int ranks) {
  ModelCall call;
  call.plans.resize(ranks);
  return call;
}

struct Named {
  std::string name;
  Configuration configuration;
};

// The rings are small, so that each of them is full in some order of steps.
std::vector<Named> Configurations() {
  // Three calls: one with more rounds than slots, one eager call, and one with
  // a single round. The two ranks start them in different orders.
  Configuration two;
  two.calls = {InSlots(2, Op::kAllGather, 3, 2), Eager(2),
               InSlots(2, Op::kAllReduce, 1, 2)};
  two.orders = {{0, 1, 2}, {2, 0, 1}};
  // Here the leader needs no data from its follower, and may run ahead of it.
  Configuration ahead;
  ahead.calls.assign(3, InSlots(2, Op::kBroadcast, 1, 3));
  ahead.orders = {{0, 1, 2}, {2, 1, 0}};
  ahead.num_slots = 3;
  Configuration three;
  three.ranks = 3;
  three.calls = {InSlots(3, Op::kBroadcast, 3, 2)};
  three.orders = {{0}, {0}, {0}};
  Configuration two_die = three;
  two_die.calls = {InSlots(3, Op::kAllGather, 1, 2)};
  two_die.crashes = 2;
  // Here ranks publish how far they have read only after every second
  // submission.
  Configuration lazy;
  lazy.calls.assign(4, Eager(2));
  lazy.orders = {{0, 1, 2, 3}, {1, 0, 3, 2}};
  lazy.reads_per_word = 2;
  Configuration eager;
  eager.ranks = 3;
  eager.calls.assign(3, Eager(3));
  eager.orders = {{0, 1, 2}, {0, 1, 2}, {1, 0, 2}};
  eager.submission_ring = 1;
  // Here one rank gives up by timeout, and no rank dies.
  Configuration timeout = two;
  timeout.timeouts = 1;
  timeout.crashes = 0;
  // Here the ranks disagree about the second call.
  Configuration disagree = two;
  disagree.calls = {Eager(2), InSlots(2, Op::kBroadcast, 1, 2)};
  disagree.calls[1].plans[1] = PlanFor(2, 1, Op::kAllGather, 1, 2, 1);
  disagree.orders = {{0, 1}, {1, 0}};
  disagree.kinds = {{0, 0}, {0, 1}};
  Configuration eager_disagree = lazy;
  eager_disagree.kinds = {{0, 0, 0, 0}, {0, 1, 0, 0}};
  // Here a call has two exchanges, and the second one moves results that ranks
  // have made from data in slots.
  Configuration output = three;
  output.announced = true;
  output.parts = 3;
  output.timeouts = 1;
  output.calls = {InSlots(3, Op::kAllReduce, 4, 2, 3)};
  Configuration slots = output;
  slots.parts = 2;
  slots.calls = {InSlots(3, Op::kReduce, 4, 2, 2)};
  return {{"TwoRanks", two},
          {"LeaderAhead", ahead},
          {"LazyReaders", lazy},
          {"ThreeRanks", three},
          {"TwoDie", two_die},
          {"EagerCalls", eager},
          {"Timeout", timeout},
          {"Disagree", disagree},
          {"EagerDisagree", eager_disagree},
          {"ResultsFromOutput", output},
          {"ResultsInSlots", slots}};
}

class ProtocolModelTest : public testing::TestWithParam<Named> {};

TEST_P(ProtocolModelTest, IsRightInEveryOrder) {
  ExpectRightInEveryOrder(Model(GetParam().configuration));
}

INSTANTIATE_TEST_SUITE_P(Configurations, ProtocolModelTest,
                         testing::ValuesIn(Configurations()),
                         [](const auto& info) { return info.param.name; });

// A fault of the model, and a configuration in which it shows.
struct Broken {
  Fault fault;
  std::string configuration;
};

class BrokenModelTest : public testing::TestWithParam<Broken> {};

TEST_P(BrokenModelTest, IsFound) {
  for (Named& named : Configurations()) {
    if (named.name != GetParam().configuration) continue;
    named.configuration.fault = GetParam().fault;
    ExpectFaultIsFound(Model(named.configuration));
    return;
  }
  FAIL() << "no such configuration";
}

const Broken kBroken[] = {
    {Fault::kSlotPublish, "TwoRanks"},
    {Fault::kSlotAcquire, "TwoRanks"},
    {Fault::kPublishedWait, "TwoRanks"},
    {Fault::kReleasedWait, "TwoRanks"},
    {Fault::kReleaseAfterReading, "TwoRanks"},
    {Fault::kSubmissionPublish, "TwoRanks"},
    {Fault::kSubmissionAcquire, "TwoRanks"},
    {Fault::kSubmissionsReadWait, "TwoRanks"},
    {Fault::kAnnouncementPublish, "TwoRanks"},
    {Fault::kAnnouncementAcquire, "TwoRanks"},
    {Fault::kAnnouncementWait, "LeaderAhead"},
    {Fault::kAbort, "ThreeRanks"},
    {Fault::kAbortPublish, "ThreeRanks"},
    {Fault::kWaitingFor, "TwoRanks"},
    {Fault::kSecondLook, "TwoRanks"},
    {Fault::kAbort, "Timeout"},
    {Fault::kAbortPublish, "Timeout"},
    {Fault::kCompare, "Disagree"},
    {Fault::kCompare, "EagerDisagree"},
    {Fault::kResultWait, "ResultsFromOutput"},
    {Fault::kResultWait, "ResultsInSlots"},
    {Fault::kSlotPublish, "ResultsInSlots"},
    {Fault::kReleaseAfterReading, "ResultsFromOutput"},
};
INSTANTIATE_TEST_SUITE_P(Faults, BrokenModelTest, testing::ValuesIn(kBroken),
                         [](const auto& info) {
                           return std::string(FaultName(info.param.fault)) +
                                  "In" + info.param.configuration;
                         });

// Checks that kBroken has every fault except the first one, which means no
// fault.
TEST(ProtocolFaultsTest, AreAllLookedFor) {
  for (size_t fault = 1; fault < std::size(kFaultNames); ++fault)
    EXPECT_TRUE(std::ranges::any_of(kBroken, [&](const Broken& broken) {
      return broken.fault == static_cast<Fault>(fault);
    })) << kFaultNames[fault];
}

}  // namespace
}  // namespace jax_cxl::comm::model
