#include "cc/comm/health/wait_monitor.h"

#include <gtest/gtest.h>

#include <chrono>
#include <string>

#include "cc/base/ticks.h"
#include "cc/comm/record/recorder.h"
#include "cc/testing/world/status_text.h"
#include "cc/testing/world/three_ranks.h"

namespace jax_cxl::comm {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// Rank 0 waits for ranks 1 and 2 to start a psum.
class WaitMonitorTest : public ThreeRanksTest {
 protected:
  WaitMonitorTest()
      : monitor_(&world_.pool(), &peers(), Times(), {{0, 1, 2}, 0}) {
    Record(0, &call_);
  }

  Status Check(milliseconds at, uint64_t progress = 0) {
    return monitor_.Check({&call_, {1, 2}, /*started=*/false, progress},
                          start_ + at);
  }
  // Returns the text that Check wrote to stderr. Check must return OK.
  std::string Warning(milliseconds at, uint64_t progress = 0) {
    testing::internal::CaptureStderr();
    const Status status = Check(at, progress);
    EXPECT_TRUE(status.ok()) << status.message();
    return testing::internal::GetCapturedStderr();
  }
  // Returns the warning if all ranks have started the call, and rank 0 waits
  // for rank 1.
  std::string WarningOnceStarted() {
    testing::internal::CaptureStderr();
    for (const seconds at : {seconds(0), seconds(3)})
      EXPECT_TRUE(
          monitor_.Check({&call_, {1}, /*started=*/true, 0}, start_ + at).ok());
    return testing::internal::GetCapturedStderr();
  }

  WaitMonitor monitor_;
};

TEST_F(WaitMonitorTest, WarnsAndThenGivesUp) {
  EXPECT_EQ(Warning(seconds(0)), "");
  EXPECT_EQ(Warning(milliseconds(1900)), "");
  const std::string warning = Warning(milliseconds(2100));
  EXPECT_TRUE(Contains(warning, "has waited 2.1 s in psum")) << warning;
  EXPECT_TRUE(Contains(warning, "to start it")) << warning;
  EXPECT_TRUE(Contains(warning, "The cause is " + peers().Name(1))) << warning;
  // After a warning, the monitor does not warn again until the same time has
  // passed once more.
  EXPECT_EQ(Warning(seconds(4)), "");
  EXPECT_NE(Warning(milliseconds(4200)), "");
  EXPECT_EQ(Warning(milliseconds(4900)), "");
  const Status status = Check(milliseconds(5100));
  EXPECT_EQ(status.code(), Code::kDeadlineExceeded);
  EXPECT_TRUE(Contains(status.message(), "JAX_CXL_TIMEOUT = 5 s"))
      << status.message();
  EXPECT_EQ(Detail(status, "rank"), "1");
  EXPECT_EQ(Detail(status, "call"), "psum: all_reduce sum of 3 float32");
  EXPECT_EQ(Detail(status, "waited_s"), "5.1");
}

TEST_F(WaitMonitorTest, ProgressBeginsTheWaitAnew) {
  for (int second = 0; second < 60; second += 1)
    EXPECT_EQ(Warning(seconds(second), /*progress=*/second), "");
  EXPECT_NE(Warning(seconds(62), 59), "");
  // The time starts again with another call, even if its progress is the same.
  ++call_.number;
  EXPECT_EQ(Warning(seconds(66), 59), "");
  EXPECT_EQ(Warning(seconds(67), 59), "");
}

TEST_F(WaitMonitorTest, WhoCouldNotCheckForLongWarnsFirst) {
  EXPECT_EQ(Warning(seconds(0)), "");
  EXPECT_NE(Warning(seconds(100)), "");
  EXPECT_EQ(Check(seconds(101)).code(), Code::kDeadlineExceeded);
}

TEST_F(WaitMonitorTest, NamesTheRankThatBlocksAndNotTheOneThatWaitsForIt) {
  // Rank 1 has started the call and waits for rank 2.
  Call same = call_;
  Recorder& recorder = *world_.endpoint(1).recorder();
  recorder.Record(&same, HashGroup({0, 1, 2}));
  recorder.Wait(same.number, 2);
  EXPECT_EQ(Warning(seconds(0)), "");
  const std::string warning = Warning(seconds(3));
  EXPECT_TRUE(Contains(warning, "The cause is " + peers().Name(2))) << warning;
}

TEST_F(WaitMonitorTest, FollowsTheCallThatTheRankWaitsIn) {
  // Rank 1 has submitted `earlier` first, but the ranks have agreed to execute
  // `same` first. So `earlier` waits for its turn.
  Call earlier = call_, same = call_;
  earlier.identity = 6;
  Record(1, &earlier);
  Record(1, &same);
  Recorder& recorder = *world_.endpoint(1).recorder();
  recorder.Start(same.number, Ticks());
  recorder.Wait(same.number, 2);
  const std::string warning = WarningOnceStarted();
  EXPECT_TRUE(Contains(warning, "The cause is " + peers().Name(2) +
                                    ", which is in no collective: it had not "
                                    "called any collective"))
      << warning;
}

TEST_F(WaitMonitorTest, NamesTheOldestCallOfARankThatHasLeftTheCallBehind) {
  Call same = call_;
  Record(1, &same);
  world_.endpoint(1).recorder()->Finish(same.number, OkStatus(), Ticks());
  Call next = call_;
  for (const char* name : {"pmax", "pmin"}) {
    ++next.identity;
    next.name = name;
    Record(1, &next);
  }
  const std::string warning = WarningOnceStarted();
  EXPECT_TRUE(Contains(warning, "The cause is " + peers().Name(1) +
                                    ", which is in its call number 2, pmax: "
                                    "all_reduce sum of 3 float32"))
      << warning;
}

TEST_F(WaitMonitorTest, APeerThatGaveUpIsAnErrorAtOnce) {
  EXPECT_TRUE(Check(seconds(0)).ok());
  peers().GiveUp(2, Error(Code::kResourceExhausted, "the pool is full"));
  const Status status = Check(seconds(0));
  EXPECT_EQ(status.code(), Code::kResourceExhausted);
  EXPECT_TRUE(Contains(status.message(), "the pool is full"))
      << status.message();
}

TEST_F(WaitMonitorTest, APeerThatEndedNormallyIsAMismatch) {
  peers().Leave(1, 4, "", /*program_ends=*/true);
  const Status status = Check(seconds(0));
  EXPECT_EQ(status.code(), Code::kMismatch);
  EXPECT_EQ(Detail(status, "rank_0"), "0");
  EXPECT_EQ(Detail(status, "call_0"), "psum: all_reduce sum of 3 float32");
  EXPECT_EQ(Detail(status, "rank_1"), "1");
  EXPECT_TRUE(Contains(Detail(status, "call_1"), "after 4 collectives"));
}

TEST_F(WaitMonitorTest, APeerThatEndedWithAnErrorIsLost) {
  peers().Leave(1, 4, "ValueError: no", /*program_ends=*/true);
  const Status status = Check(seconds(0));
  EXPECT_EQ(status.code(), Code::kPeerLost);
  EXPECT_TRUE(Contains(status.message(), "ended with ValueError: no"))
      << status.message();
  EXPECT_EQ(Detail(status, "call"), "psum: all_reduce sum of 3 float32");
}

// The call waits for rank 1 only, because rank 2 has sent everything that the
// call needs from it. So rank 2 may have ended.
TEST_F(WaitMonitorTest, OnlyThoseThatAreWaitedForHaveToLive) {
  peers().Leave(2, 4, "ValueError: no", /*program_ends=*/true);
  const Status status =
      monitor_.Check({&call_, {1}, /*started=*/true, 0}, start_);
  EXPECT_TRUE(status.ok()) << status.message();
}

}  // namespace
}  // namespace jax_cxl::comm
