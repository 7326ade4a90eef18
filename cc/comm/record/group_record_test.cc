#include "cc/comm/record/group_record.h"

#include <gtest/gtest.h>

#include "cc/pool/coherence/doorbell.h"
#include "cc/testing/world/world.h"

namespace jax_cxl::comm {
namespace {

class GroupRecordTest : public testing::Test {
 protected:
  GroupRecordTest() : world_(2, {}), calls_(world_.endpoint(0).recorder(), 5) {
    call_.request.op = plan::Op::kAllReduce;
    call_.name = "psum";
  }

  // Returns the record of the rank's `number`th call, from 1.
  const pool::CallRecord& At(uint64_t number) {
    const pool::CallRecord& record =
        world_.pool().recorder(0)->calls[number % pool::kRecordedCalls];
    const pool::Doorbells doorbells(world_.pool().coherence(),
                                    world_.pool().epoch());
    EXPECT_EQ(doorbells.Read(&record.number), number);
    return record;
  }

  World world_;
  GroupRecord calls_;
  Call call_;
};

TEST_F(GroupRecordTest, ProgressComesInCounts) {
  for (uint64_t place : {0, 1, 2, 3}) calls_.Record(place, &call_);
  calls_.Advance(3, 1);
  calls_.Wait(1, 1);
  for (uint64_t number : {1, 2, 3, 4}) {
    EXPECT_EQ(At(number).identity, number);
    EXPECT_EQ(At(number).group, 5u);
    EXPECT_STREQ(At(number).name, "psum");
    EXPECT_EQ(At(number).started != 0, number <= 3);
    EXPECT_EQ(At(number).finished != 0, number <= 1);
    EXPECT_EQ(At(number).waiting_for, number == 2 ? 1 : -1);
  }
  calls_.Advance(3, 4);
  calls_.Advance(4, 4);
  for (uint64_t number : {1, 2, 3, 4}) {
    EXPECT_NE(At(number).started, 0u);
    EXPECT_GE(At(number).finished, At(number).started);
    EXPECT_EQ(At(number).code, static_cast<uint32_t>(Code::kOk));
  }
}

TEST_F(GroupRecordTest, AFailureIsThatOfItsCall) {
  calls_.Record(0, &call_);
  calls_.Fail(0, Error(Code::kUnimplemented, "refused"));
  calls_.Record(0, &call_);  // The next call has the same place.
  calls_.Record(1, &call_);
  calls_.Advance(1, 1);
  calls_.Fail(1, Error(Code::kPeerLost, "gone"));
  EXPECT_EQ(At(1).code, static_cast<uint32_t>(Code::kUnimplemented));
  EXPECT_EQ(At(2).code, static_cast<uint32_t>(Code::kOk));
  EXPECT_EQ(At(3).code, static_cast<uint32_t>(Code::kPeerLost));
  EXPECT_EQ(At(2).identity, At(1).identity);
}

TEST_F(GroupRecordTest, CallsOfOthersComeBetween) {
  GroupRecord others(world_.endpoint(0).recorder(), 6);
  for (uint64_t place : {0, 1}) {
    calls_.Record(place, &call_);
    others.Record(place, &call_);
  }
  calls_.Advance(2, 2);
  for (uint64_t number : {1, 2, 3, 4})
    EXPECT_EQ(At(number).finished != 0, number % 2 == 1);
}

TEST_F(GroupRecordTest, CallsThatLeftTheRecorderStayOut) {
  // The device is further behind its host than there are records.
  const uint64_t total = 2 * pool::kRecordedCalls;
  for (uint64_t place = 0; place < total; ++place) calls_.Record(place, &call_);
  const uint64_t oldest = total - pool::kRecordedCalls + 1;
  calls_.Advance(total, oldest);
  calls_.Wait(0, 1);
  for (uint64_t number = oldest; number <= total; ++number) {
    EXPECT_EQ(At(number).finished != 0, number == oldest);
    EXPECT_EQ(At(number).waiting_for, -1);
  }
}

TEST_F(GroupRecordTest, SkippedCallsHaveNoRecord) {
  for (uint64_t place : {0, 1}) calls_.Record(place, &call_);
  calls_.Advance(1, 0);
  calls_.SkipTo(1);  // behind the last record: nothing to do
  EXPECT_EQ(At(1).finished, 0u);
  calls_.SkipTo(100);
  for (uint64_t number : {1, 2}) EXPECT_NE(At(number).finished, 0u);
  calls_.Record(100, &call_);
  EXPECT_EQ(call_.number, 3u);
  EXPECT_EQ(At(3).identity, 101u);
  calls_.Advance(101, 100);
  EXPECT_NE(At(3).started, 0u);
  EXPECT_EQ(At(3).finished, 0u);
  calls_.Advance(101, 101);
  EXPECT_NE(At(3).finished, 0u);
}

}  // namespace
}  // namespace jax_cxl::comm
