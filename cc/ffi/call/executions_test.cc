#include "cc/ffi/call/executions.h"

#include <gtest/gtest.h>

#include <utility>
#include <vector>

namespace jax_cxl::ffi {
namespace {

using Pair = std::pair<uint64_t, uint64_t>;

Pair Next(Executions& executions, int64_t run_id, int32_t device = 0,
          uint64_t job = 1) {
  const auto number = executions.Next(job, device, run_id);
  EXPECT_TRUE(number.ok()) << number.status().message();
  return {number->launch, number->execution};
}

TEST(ExecutionsTest, CountsLaunchesAndLoops) {
  Executions executions;
  EXPECT_EQ(Next(executions, 70), Pair(0, 0));
  EXPECT_EQ(Next(executions, 70), Pair(0, 1));
  EXPECT_EQ(Next(executions, 71), Pair(1, 0));
  // Launch 71 begins before launch 70 has finished its loop.
  EXPECT_EQ(Next(executions, 70), Pair(0, 2));
  EXPECT_EQ(Next(executions, 71), Pair(1, 1));
}

TEST(ExecutionsTest, NumbersDoNotDependOnLaunchIds) {
  Executions compiled, cached;
  for (int launch = 0; launch < 200; ++launch)
    EXPECT_EQ(Next(compiled, 1000 + 2 * launch), Next(cached, -50 + launch));
}

TEST(ExecutionsTest, DevicesCountForThemselves) {
  Executions executions;
  EXPECT_EQ(Next(executions, 5, 0), Pair(0, 0));
  EXPECT_EQ(Next(executions, 6, 0), Pair(1, 0));
  EXPECT_EQ(Next(executions, 5, 1), Pair(0, 0));
}

TEST(ExecutionsTest, AJobBeginsWithNewNumbers) {
  Executions executions;
  EXPECT_EQ(Next(executions, 5, 0, 1), Pair(0, 0));
  EXPECT_EQ(Next(executions, 6, 0, 1), Pair(1, 0));
  EXPECT_EQ(Next(executions, 7, 0, 2), Pair(0, 0));
}

TEST(ExecutionsTest, LaunchesOutOfOrderAreAnError) {
  Executions executions;
  EXPECT_EQ(Next(executions, 6), Pair(0, 0));
  EXPECT_EQ(executions.Next(1, 0, 5).status().code(), Code::kInternal);
}

TEST(ExecutionsTest, AProgramThatIsLoadedAgainGoesOn) {
  const std::vector<std::vector<int32_t>> all = {{0, 1, 2}}, some = {{0, 1}};
  auto executions = Executions::Of("jit_f", 3, all);
  EXPECT_EQ(Next(*executions, 1'000'000), Pair(0, 0));
  EXPECT_EQ(Next(*Executions::Of("jit_f", 3, all), 17), Pair(1, 0));
  EXPECT_EQ(Next(*Executions::Of("jit_f", 4, all), 17), Pair(0, 0));
  EXPECT_EQ(Next(*Executions::Of("jit_g", 3, all), 17), Pair(0, 0));
  // Another program with the name "jit_f", which rank 2 does not run, has
  // counts of its own.
  EXPECT_EQ(Next(*Executions::Of("jit_f", 3, some), 17), Pair(0, 0));
}

}  // namespace
}  // namespace jax_cxl::ffi
