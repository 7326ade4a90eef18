#include <gtest/gtest.h>

#include <chrono>
#include <string>

#include "cc/comm/health/wait_monitor.h"
#include "cc/testing/world/status_text.h"
#include "cc/testing/world/three_ranks.h"

namespace jax_cxl::comm {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr char kPsum[] =
    "psum: all_reduce sum of 3 float32 at train.py:33 (step)";

// The device of rank 0 has begun a psum. All hosts have enqueued it, and the
// devices of ranks 1 and 2 have not finished it.
class DeviceWaitTest : public ThreeRanksTest {
 protected:
  DeviceWaitTest() : waits_(&world_.pool(), &peers(), Times(), {{0, 1, 2}, 0}) {
    call_.site = "train.py:33 (step)";
    Record(0, &call_);
    wait_.call = &call_;
    wait_.begun = true;
    wait_.at_work = {1, 2};
    wait_.progress = 7;
  }

  Status Check(milliseconds at) { return waits_.Check(wait_, start_ + at); }
  std::string Warning(milliseconds at) {
    testing::internal::CaptureStderr();
    const Status status = Check(at);
    EXPECT_TRUE(status.ok()) << status.message();
    return testing::internal::GetCapturedStderr();
  }

  DeviceWait wait_;
  WaitMonitor waits_;
};

TEST_F(DeviceWaitTest, AMemberThatIsGoneEndsACallThatStandsStill) {
  EXPECT_TRUE(Check(seconds(0)).ok());
  peers().Leave(2, 4, "ValueError: no", /*program_ends=*/true);
  // Rank 2 may have sent all that the call needs. So it is too early for an
  // error.
  EXPECT_TRUE(Check(milliseconds(190)).ok());
  ++wait_.progress;
  EXPECT_TRUE(Check(milliseconds(300)).ok());
  EXPECT_TRUE(Check(milliseconds(490)).ok());
  const Status status = Check(milliseconds(510));
  EXPECT_EQ(status.code(), Code::kPeerLost);
  EXPECT_EQ(Detail(status, "rank"), "2");
  EXPECT_EQ(Detail(status, "pid"), std::to_string(getpid()));
  EXPECT_NE(Detail(status, "host"), "");
  EXPECT_EQ(Detail(status, "last"), "started no collective");
  EXPECT_EQ(Detail(status, "call"), kPsum);
}

TEST_F(DeviceWaitTest, AMemberThatHasFinishedTheCallMayBeGone) {
  wait_.at_work = {1};
  peers().Leave(2, 4, "", /*program_ends=*/true);
  EXPECT_TRUE(Check(seconds(0)).ok());
  EXPECT_TRUE(Check(milliseconds(500)).ok());
  wait_.at_work = {};
  EXPECT_TRUE(Check(milliseconds(800)).ok());
}

TEST_F(DeviceWaitTest, AMemberThatEndedWithoutTheCallIsAMismatch) {
  wait_.missing = {1};
  peers().Leave(1, 4, "", /*program_ends=*/true);
  EXPECT_TRUE(Check(seconds(0)).ok());
  const Status status = Check(milliseconds(300));
  EXPECT_EQ(status.code(), Code::kMismatch);
  EXPECT_EQ(Detail(status, "rank_0"), "0");
  EXPECT_EQ(Detail(status, "call_0"), kPsum);
  EXPECT_EQ(Detail(status, "rank_1"), "1");
  EXPECT_TRUE(Contains(Detail(status, "call_1"), "after 4 collectives"));
}

TEST_F(DeviceWaitTest, ACallBehindOwnWorkWaitsForNobody) {
  wait_.begun = false;
  wait_.missing = {1};
  EXPECT_EQ(wait_.member(), -1);
  peers().Leave(1, 4, "ValueError: no", /*program_ends=*/true);
  for (int second = 0; second < 20; ++second)
    EXPECT_EQ(Warning(seconds(second)), "");
  // The time counts from the beginning of the call.
  wait_.begun = true;
  EXPECT_TRUE(Check(seconds(20)).ok());
  EXPECT_EQ(Check(seconds(21)).code(), Code::kPeerLost);
}

TEST_F(DeviceWaitTest, AMemberThatGaveUpIsAnErrorAtOnce) {
  wait_.begun = false;
  peers().GiveUp(2, Error(Code::kResourceExhausted, "the pool is full"));
  const Status status = Check(seconds(0));
  EXPECT_EQ(status.code(), Code::kResourceExhausted);
  EXPECT_EQ(Detail(status, "told_by"), "2");
}

TEST_F(DeviceWaitTest, WarnsOfTheMemberThatTheDeviceNamesAndGivesUp) {
  for (int rank : {1, 2}) {
    Call same = call_;
    Record(rank, &same);
  }
  wait_.waiting_for = 2;
  EXPECT_EQ(wait_.member(), 2);
  EXPECT_EQ(Warning(seconds(0)), "");
  const std::string warning = Warning(milliseconds(2100));
  EXPECT_TRUE(Contains(warning, "has waited 2.1 s in psum")) << warning;
  EXPECT_TRUE(Contains(warning, "to continue with it")) << warning;
  EXPECT_TRUE(Contains(warning, "The cause is " + peers().Name(2))) << warning;
  const Status status = Check(milliseconds(5100));
  EXPECT_EQ(status.code(), Code::kDeadlineExceeded);
  EXPECT_EQ(Detail(status, "rank"), "2");
  EXPECT_EQ(Detail(status, "call"), kPsum);
  EXPECT_EQ(Detail(status, "waited_s"), "5.1");
}

TEST_F(DeviceWaitTest, BlamesTheMemberThatHasNotEnqueuedTheCall) {
  Call same = call_;
  Record(1, &same);
  wait_.missing = {2};
  wait_.waiting_for = 1;
  EXPECT_EQ(wait_.member(), 2);
  EXPECT_EQ(Warning(seconds(0)), "");
  const std::string warning = Warning(seconds(3));
  EXPECT_TRUE(Contains(warning, "for " + peers().Name(2) + " to start it"))
      << warning;
  EXPECT_TRUE(Contains(warning, "The cause is " + peers().Name(2))) << warning;
}

TEST_F(DeviceWaitTest, ErrorsThatTheDeviceFindsHaveTheSameDetails) {
  Call other = call_;
  other.name = "pmax";
  other.reduce_op = ReduceOp::kMax;
  other.site = "train.py:40 (step)";
  Record(1, &other);
  const Status mismatch = waits_.Mismatch(call_, 1);
  EXPECT_EQ(mismatch.code(), Code::kMismatch);
  EXPECT_EQ(Detail(mismatch, "rank_0"), "0");
  EXPECT_EQ(Detail(mismatch, "call_0"), kPsum);
  EXPECT_EQ(Detail(mismatch, "rank_1"), "1");
  EXPECT_EQ(Detail(mismatch, "call_1"),
            "pmax: all_reduce max of 3 float32 at train.py:40 (step)");

  const Status timeout = waits_.Timeout(call_, 2);
  EXPECT_EQ(timeout.code(), Code::kDeadlineExceeded);
  EXPECT_EQ(Detail(timeout, "rank"), "2");
  EXPECT_EQ(Detail(timeout, "call"), kPsum);
  EXPECT_EQ(Detail(timeout, "last"), "started no collective");
}

}  // namespace
}  // namespace jax_cxl::comm
