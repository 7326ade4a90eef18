#include "cc/base/awake_clock.h"

#include <gtest/gtest.h>

namespace jax_cxl {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr AwakeClock::Base::time_point kStart{std::chrono::hours(1)};

TEST(AwakeClockTest, GoesAsItsBaseWhileItIsReadOften) {
  AwakeClock clock(kStart);
  for (milliseconds at{0}; at < seconds(10); at += milliseconds(100))
    EXPECT_EQ(clock.Now(kStart + at), kStart + at);
}

TEST(AwakeClockTest, StopsWhileNobodyReadsIt) {
  AwakeClock clock(kStart);
  clock.Now(kStart + milliseconds(100));
  EXPECT_EQ(clock.Now(kStart + seconds(8)), kStart + milliseconds(600));
  EXPECT_EQ(clock.Now(kStart + seconds(8) + milliseconds(10)),
            kStart + milliseconds(610));
}

TEST(AwakeClockTest, NeverGoesBack) {
  AwakeClock clock(kStart);
  clock.Now(kStart + milliseconds(200));
  // As if a thread read the base clock before another thread did, but called
  // Now after that thread.
  EXPECT_EQ(clock.Now(kStart + milliseconds(100)), kStart + milliseconds(200));
  EXPECT_EQ(clock.Now(kStart + milliseconds(300)), kStart + milliseconds(300));
}

}  // namespace
}  // namespace jax_cxl
