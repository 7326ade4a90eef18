#include "cc/comm/counted_calls.h"

#include <gtest/gtest.h>

#include <vector>

#include "cc/comm/recorded_calls.h"
#include "cc/comm/world_testing.h"

namespace jax_cxl::comm {
namespace {

class CountedCallsTest : public testing::Test {
 protected:
  CountedCallsTest()
      : world_(2, {}),
        doorbells_(world_.pool().coherence(), world_.pool().epoch()),
        calls_(world_.endpoint(0).recorder(), 5) {
    call_.request.op = plan::Op::kAllReduce;
    call_.name = "psum";
  }

  std::vector<RecordedCall> Read() {
    return ReadCalls(*world_.pool().recorder(0), doorbells_,
                     pool::kRecordedCalls);
  }

  World world_;
  pool::Doorbells doorbells_;
  CountedCalls calls_;
  Call call_;
};

TEST_F(CountedCallsTest, ProgressComesInCounts) {
  for (uint64_t place : {0, 1, 2, 3}) calls_.Submit(place, call_);
  calls_.Advance(3, 1);
  calls_.Wait(1, 1);
  std::vector<RecordedCall> found = Read();
  ASSERT_EQ(found.size(), 4u);
  for (uint64_t place : {0, 1, 2, 3}) {
    EXPECT_EQ(found[place].identity, place + 1);
    EXPECT_EQ(found[place].group, 5u);
    EXPECT_EQ(found[place].name, "psum");
    EXPECT_EQ(found[place].started != 0, place < 3);
    EXPECT_EQ(found[place].finished != 0, place < 1);
    EXPECT_EQ(found[place].waiting_for, place == 1 ? 1 : -1);
  }
  calls_.Advance(3, 4);
  calls_.Advance(4, 4);
  for (const RecordedCall& call : Read()) {
    EXPECT_NE(call.started, 0);
    EXPECT_GE(call.finished, call.started);
    EXPECT_EQ(call.code, Code::kOk);
  }
}

TEST_F(CountedCallsTest, AFailureIsThatOfItsCall) {
  calls_.Submit(0, call_);
  calls_.Fail(0, Error(Code::kUnimplemented, "refused"));
  calls_.Submit(0, call_);  // The next one takes its place.
  calls_.Submit(1, call_);
  calls_.Advance(1, 1);
  calls_.Fail(1, Error(Code::kPeerLost, "gone"));
  const std::vector<RecordedCall> found = Read();
  ASSERT_EQ(found.size(), 3u);
  EXPECT_EQ(found[0].code, Code::kUnimplemented);
  EXPECT_EQ(found[1].code, Code::kOk);
  EXPECT_EQ(found[2].code, Code::kPeerLost);
  EXPECT_EQ(found[1].identity, found[0].identity);
}

TEST_F(CountedCallsTest, CallsOfOthersComeBetween) {
  CountedCalls others(world_.endpoint(0).recorder(), 6);
  for (uint64_t place : {0, 1}) {
    calls_.Submit(place, call_);
    others.Submit(place, call_);
  }
  calls_.Advance(2, 2);
  for (const RecordedCall& call : Read())
    EXPECT_EQ(call.finished != 0, call.group == 5) << call.number;
}

TEST_F(CountedCallsTest, CallsThatLeftTheRecorderStayOut) {
  // The device is behind by more calls than there are records.
  const uint64_t total = 2 * pool::kRecordedCalls;
  for (uint64_t place = 0; place < total; ++place) calls_.Submit(place, call_);
  calls_.Advance(total, total / 2 + 1);
  calls_.Wait(0, 1);
  const std::vector<RecordedCall> found = Read();
  ASSERT_EQ(found.size(), pool::kRecordedCalls);
  for (const RecordedCall& call : found) {
    EXPECT_EQ(call.finished != 0, call.identity == total / 2 + 1);
    EXPECT_EQ(call.waiting_for, -1);
  }
}

}  // namespace
}  // namespace jax_cxl::comm
