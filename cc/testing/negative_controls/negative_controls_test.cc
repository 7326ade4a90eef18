// Sanitizers: none. It starts a process for each operation that it leaves out.

// Leaves out the operations of the protocol one by one, and expects that a
// scenario of negative_controls.h fails. docs/protocol.md has the times that
// this takes.
#include "cc/testing/negative_controls/negative_controls.h"

#include <gtest/gtest.h>

#include <string>

#include "cc/pool/coherence/cache.h"
#include "cc/testing/pool/random_test_length.h"

namespace jax_cxl::comm {
namespace {

constexpr double kSeconds = 5;
// How many seeds a test tries. An omission may show only with the second seed,
// and on a busy machine even later.
constexpr uint64_t kSeeds = 12;

bool CanRun(Scenario scenario) {
  const bool needs_flush =
      scenario == Scenario::kDevices || scenario == Scenario::kNoAdversary;
  return !needs_flush || pool::FlushSupported();
}

class ControlTest : public testing::TestWithParam<Control> {};

TEST_P(ControlTest, IsCaught) {
  const Control& control = GetParam();
  if (!CanRun(control.caught_by))
    GTEST_SKIP() << "needs cache line instructions";
  Outcome outcome;
  for (uint64_t seed = 1; seed <= kSeeds && !outcome.caught; ++seed)
    outcome = RunControl({seed, std::string(control.leaves_out)},
                         control.caught_by, kSeconds);
  EXPECT_TRUE(outcome.caught) << ScenarioName(control.caught_by)
                              << " does not miss " << control.leaves_out;
}

INSTANTIATE_TEST_SUITE_P(Moves, ControlTest, testing::ValuesIn(kControls),
                         [](const auto& info) {
                           std::string name(info.param.leaves_out);
                           name[name.find('.')] = '_';
                           return info.param.caught_by == Scenario::kDevices
                                      ? name + "_of_devices"
                                      : name;
                         });

class NothingLeftOutTest : public testing::TestWithParam<Scenario> {};

TEST_P(NothingLeftOutTest, Passes) {
  if (!CanRun(GetParam())) GTEST_SKIP() << "needs cache line instructions";
  const Outcome outcome = RunControl({1, ""}, GetParam(), RandomTestSeconds());
  EXPECT_FALSE(outcome.caught) << outcome.how;
}

INSTANTIATE_TEST_SUITE_P(Scenarios, NothingLeftOutTest,
                         testing::Values(Scenario::kSoak, Scenario::kTalk,
                                         Scenario::kHandOver,
                                         Scenario::kDevices,
                                         Scenario::kNoAdversary));

}  // namespace
}  // namespace jax_cxl::comm
