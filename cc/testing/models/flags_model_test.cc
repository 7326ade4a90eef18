// Sanitizers: none. It visits millions of states: minutes with a sanitizer.

// Tries every order of every step of short messages between GPUs, with a death
// of one rank at any point. Checks that no unread word is overwritten, that no
// old word is taken for a new one, and that every live rank ends.
#include "cc/testing/models/flags_model.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <string>
#include <vector>

#include "cc/testing/models/search_testing.h"

namespace jax_cxl::comm::flags_model {
namespace {

using model::ExpectFaultIsFound;
using model::ExpectRightInEveryOrder;

FlagsCall AllGather(int ranks, int words) {
  return {words, static_cast<uint8_t>((1 << ranks) - 1), {}};
}
FlagsCall Broadcast(int words) { return {words, 1, {}}; }

struct Named {
  std::string name;
  Configuration configuration;
};

std::vector<Named> Configurations() {
  Configuration two;
  two.calls.assign(4, AllGather(2, 2));
  // In a broadcast the root gets no data from others. So it must check what
  // they have released before it writes a slot again.
  Configuration ahead;
  ahead.calls = {Broadcast(2), Broadcast(1), Broadcast(2), Broadcast(1),
                 AllGather(2, 1)};
  Configuration three;
  three.ranks = 3;
  three.calls.assign(3, Broadcast(1));
  // After a call in which all hear from all, a root goes on alone.
  Configuration leaves;
  leaves.calls = {AllGather(2, 1), Broadcast(1), Broadcast(1), Broadcast(1)};
  Configuration two_write;
  two_write.ranks = 3;
  two_write.crashes = 0;  // with a death it has too many states
  two_write.calls.assign(3, {1, 0b011, {}});
  Configuration disagree = two;
  disagree.calls[1].kind = {0, 1};
  // The rounds have the flags 1, 2 and 3. Then the slots are cleared, and the
  // flags start again with 1 and 2. The second word of a slot is put in the
  // first round, and is not put again until the round that has the same flag.
  // If the slots were not cleared, a reader that finds the old word there would
  // take it for the new one.
  Configuration wrapping;
  wrapping.flags = 4;
  wrapping.calls = {AllGather(2, 2), AllGather(2, 1), AllGather(2, 1),
                    AllGather(2, 2), AllGather(2, 1)};
  Configuration ahead_wrapping = wrapping;
  ahead_wrapping.calls = {Broadcast(2), Broadcast(1), Broadcast(1),
                          Broadcast(2), Broadcast(1)};
  Configuration timeout = wrapping;
  timeout.timeouts = 1;
  return {{"TwoRanks", two},         {"LeaderAhead", ahead},
          {"ThreeRanks", three},     {"LeaderLeaves", leaves},
          {"TwoOfThree", two_write}, {"Disagree", disagree},
          {"FlagsWrap", wrapping},   {"LeaderAheadWraps", ahead_wrapping},
          {"Timeout", timeout}};
}

class FlagsModelTest : public testing::TestWithParam<Named> {};

TEST_P(FlagsModelTest, IsRightInEveryOrder) {
  ExpectRightInEveryOrder(Model(GetParam().configuration));
}

INSTANTIATE_TEST_SUITE_P(Configurations, FlagsModelTest,
                         testing::ValuesIn(Configurations()),
                         [](const auto& info) { return info.param.name; });

// A fault of the model, and a configuration in which it shows.
struct Broken {
  Fault fault;
  std::string configuration;
};

class BrokenFlagsTest : public testing::TestWithParam<Broken> {};

TEST_P(BrokenFlagsTest, IsFound) {
  for (Named& named : Configurations()) {
    if (named.name != GetParam().configuration) continue;
    named.configuration.fault = GetParam().fault;
    named.configuration.crashes = 0;  // The fault shows without a death.
    ExpectFaultIsFound(Model(named.configuration));
    return;
  }
  FAIL() << "no such configuration";
}

const Broken kBroken[] = {
    {Fault::kReleasedWait, "LeaderAhead"},
    {Fault::kReleaseAfterReading, "LeaderAhead"},
    {Fault::kLeastReleased, "ThreeRanks"},
    {Fault::kThisRound, "LeaderLeaves"},
    {Fault::kHeardAll, "TwoOfThree"},
    {Fault::kFlag, "TwoRanks"},
    {Fault::kCallWait, "Disagree"},
    {Fault::kCallBehindSlot, "LeaderAhead"},
    {Fault::kWipe, "FlagsWrap"},
    {Fault::kWipeWait, "LeaderAheadWraps"},
    {Fault::kMeeting, "FlagsWrap"},
};
INSTANTIATE_TEST_SUITE_P(Faults, BrokenFlagsTest, testing::ValuesIn(kBroken),
                         [](const auto& info) {
                           return std::string(FaultName(info.param.fault)) +
                                  "In" + info.param.configuration;
                         });

// Checks that kBroken has every fault except the first one, which means no
// fault.
TEST(FlagsFaultsTest, AreAllLookedFor) {
  for (size_t fault = 1; fault < std::size(kFaultNames); ++fault)
    EXPECT_TRUE(std::ranges::any_of(kBroken, [&](const Broken& broken) {
      return broken.fault == static_cast<Fault>(fault);
    })) << kFaultNames[fault];
}

}  // namespace
}  // namespace jax_cxl::comm::flags_model
