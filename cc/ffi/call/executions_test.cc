#include <gtest/gtest.h>

#include "cc/ffi/call/call_site.h"

namespace jax_cxl::ffi {
namespace {

TEST(ExecutionsTest, CountsLoopsOfLaunchesThatRunTogether) {
  Executions executions;
  EXPECT_EQ(executions.Next(0, 70), 0u);
  EXPECT_EQ(executions.Next(0, 70), 1u);
  EXPECT_EQ(executions.Next(0, 71), 0u);
  EXPECT_EQ(executions.Next(0, 70), 2u);
  EXPECT_EQ(executions.Next(0, 71), 1u);
}

TEST(ExecutionsTest, LaunchesMayStartInAnyOrder) {
  Executions executions;
  EXPECT_EQ(executions.Next(0, 6), 0u);
  EXPECT_EQ(executions.Next(0, 5), 0u);
  EXPECT_EQ(executions.Next(0, 6), 1u);
  EXPECT_EQ(executions.Next(0, 5), 1u);
}

TEST(ExecutionsTest, DevicesCountForThemselves) {
  Executions executions;
  EXPECT_EQ(executions.Next(0, 5), 0u);
  EXPECT_EQ(executions.Next(0, 5), 1u);
  EXPECT_EQ(executions.Next(1, 5), 0u);
}

TEST(ExecutionsTest, ALaunchThatLoopsIsNotForgotten) {
  Executions executions;
  for (uint64_t i = 0; i < 500; ++i) {
    EXPECT_EQ(executions.Next(0, 3), i);
    EXPECT_EQ(executions.Next(0, 1000 + static_cast<int64_t>(i)), 0u);
  }
}

}  // namespace
}  // namespace jax_cxl::ffi
