// Sanitizers: address, thread

#include "cc/comm/record/recorder.h"

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cc/base/ticks.h"
#include "cc/pool/coherence/doorbell.h"
#include "cc/pool/layout/words.h"
#include "cc/testing/world/world.h"

namespace jax_cxl::comm {
namespace {

Call MakeCall(uint64_t identity, std::string name = "psum") {
  Call call;
  call.identity = identity;
  call.request.op = plan::Op::kAllReduce;
  call.request.num_ranks = 2;
  call.request.count = 3;
  call.dtype = DType::kFloat32;
  call.name = std::move(name);
  call.submitted = Ticks();
  return call;
}

class RecorderTest : public testing::Test {
 protected:
  RecorderTest() : world_(2, {}), recorder_(&world_.pool(1), 1) {}

  const pool::CallRecord& At(uint64_t number) {
    return world_.pool(1).recorder(1)->calls[number % pool::kRecordedCalls];
  }
  uint64_t NumberAt(uint64_t number) {
    return pool::Doorbells(world_.pool(1).coherence(), world_.pool(1).epoch())
        .Read(&At(number).number);
  }

  World world_;
  Recorder recorder_;
};

TEST_F(RecorderTest, ACallLeavesItsWholeStory) {
  Call call = MakeCall(77);
  recorder_.Record(&call, 5);
  EXPECT_EQ(call.number, 1u);
  EXPECT_EQ(NumberAt(1), 1u);
  EXPECT_EQ(At(1).identity, 77u);
  EXPECT_EQ(At(1).group, 5u);
  EXPECT_EQ(At(1).descriptor, Describe(call));
  EXPECT_STREQ(At(1).name, "psum");
  EXPECT_EQ(At(1).started, 0u);
  EXPECT_EQ(At(1).waiting_for, -1);

  recorder_.Wait(call.number, 0);
  EXPECT_EQ(At(1).waiting_for, 0);
  const uint64_t before = Ticks();
  recorder_.Start(call.number, Ticks());
  EXPECT_GE(At(1).started, before);
  EXPECT_EQ(At(1).finished, 0u);
  recorder_.Finish(call.number, Error(Code::kPeerLost, "gone"), Ticks());
  EXPECT_GE(At(1).finished, At(1).started);
  EXPECT_EQ(At(1).code, static_cast<uint32_t>(Code::kPeerLost));
}

TEST_F(RecorderTest, TheLast4096CallsStay) {
  for (uint64_t i = 1; i <= 3 * pool::kRecordedCalls + 5; ++i) {
    Call call = MakeCall(i);
    recorder_.Record(&call, 5);
    recorder_.Finish(call.number, OkStatus(), Ticks());
  }
  const uint64_t last = 3 * pool::kRecordedCalls + 5;
  for (uint64_t i = last - pool::kRecordedCalls + 1; i <= last; ++i) {
    ASSERT_EQ(NumberAt(i), i);
    ASSERT_EQ(At(i).identity, i);
    ASSERT_NE(At(i).finished, 0u);
  }
}

TEST_F(RecorderTest, ACallThatOutlivesItsRecordWritesNothing) {
  Call slow = MakeCall(1);
  recorder_.Record(&slow, 5);
  for (uint64_t i = 2; i <= pool::kRecordedCalls + 1; ++i) {
    Call call = MakeCall(i);
    recorder_.Record(&call, 5);
  }
  EXPECT_EQ(NumberAt(1), pool::kRecordedCalls + 1);
  recorder_.Start(slow.number, Ticks());
  recorder_.Wait(slow.number, 0);
  recorder_.Finish(slow.number, Error(Code::kInternal, "late"), Ticks());
  EXPECT_EQ(At(1).started, 0u);
  EXPECT_EQ(At(1).waiting_for, -1);
  EXPECT_EQ(At(1).finished, 0u);
}

TEST_F(RecorderTest, LongNamesAreCut) {
  Call call = MakeCall(1, std::string(100, 'x'));
  recorder_.Record(&call, 5);
  EXPECT_EQ(std::string(At(1).name), std::string(39, 'x'));
}

TEST_F(RecorderTest, SitesHaveNumbers) {
  const auto submit = [&](const std::string& site) {
    Call call = MakeCall(1, "psum");
    call.site = site;
    recorder_.Record(&call, 5);
    return At(call.number).site;
  };
  EXPECT_EQ(submit("train.py:1 (f)"), 1u);
  EXPECT_EQ(submit(""), 0u);
  EXPECT_EQ(submit("train.py:2 (f)"), 2u);
  EXPECT_EQ(submit("train.py:1 (f)"), 1u);
  const pool::SiteRecord* sites = world_.pool(1).recorder(1)->sites;
  EXPECT_STREQ(sites[2].text, "train.py:2 (f)");
  // There are more sites than records. An older site loses its record, and gets
  // a new number.
  for (uint64_t i = 3; i <= pool::kRecordedSites + 1; ++i)
    EXPECT_EQ(submit("train.py:" + std::to_string(i)), i);
  EXPECT_STREQ(sites[1].text, "train.py:257");
  EXPECT_EQ(submit("train.py:1 (f)"), pool::kRecordedSites + 2);
}

TEST_F(RecorderTest, CountsEachOperation) {
  const auto run = [&](const char* name, bool starts, const Status& status) {
    Call call = MakeCall(1, name);
    call.submitted = 1000;
    recorder_.Record(&call, 5);
    if (starts) recorder_.Start(call.number, 1100);
    recorder_.Finish(call.number, status, 1400);
  };
  run("psum", true, OkStatus());
  run("psum", false, OkStatus());
  run("all_gather", true, Error(Code::kInternal, "late"));
  const auto counted = recorder_.operations();
  ASSERT_EQ(counted.size(), 2u);
  EXPECT_STREQ(counted[0].name, "psum");
  EXPECT_EQ(counted[0].calls, 2u);
  EXPECT_EQ(counted[0].waited, 100u + 400u);
  EXPECT_EQ(counted[0].worked, 300u);
  EXPECT_EQ(counted[0].failed, 0u);
  EXPECT_EQ(counted[1].failed, 1u);
  const pool::OperationRecord& shared =
      world_.pool(1).recorder(1)->operations[0];
  EXPECT_EQ(shared.waited, counted[0].waited);
  // Names without a record of their own are counted together.
  for (int i = 0; i < 40; ++i)
    run(("op" + std::to_string(i)).c_str(), true, OkStatus());
  EXPECT_EQ(recorder_.operations().size(), pool::kRecordedOperations);
  EXPECT_STREQ(recorder_.operations().back().name, "others");
  EXPECT_EQ(recorder_.operations().back().calls, 40 - 29u);
}

TEST_F(RecorderTest, Clocks) {
  const pool::RecorderClock clock =
      pool::LoadWords(world_.pool(0).recorder(0)->clock);
  EXPECT_NE(clock.first.ticks, 0u) << "the watcher of the world beats";
  EXPECT_GE(clock.last.realtime_ns, clock.first.realtime_ns);
}

TEST(RecorderOfEndpointTest, EachRankRecordsItsOwn) {
  World world(2, {});
  const std::vector<int32_t> members = {0, 1};
  std::vector<float> input(8, 1),
      output[2] = {std::vector<float>(8), std::vector<float>(8)};
  for (int i = 0; i < 3; ++i) {
    Countdown countdown(2);
    for (int rank : {0, 1}) {
      auto call = std::make_unique<Call>(MakeCall(100 + i));
      call->request.rank = rank;
      call->request.count = 8;
      call->request.element_bytes = 4;
      call->input = reinterpret_cast<const std::byte*>(input.data());
      call->output = reinterpret_cast<std::byte*>(output[rank].data());
      countdown.StartCall(world.endpoint(rank), members, std::move(call));
    }
    ASSERT_TRUE(countdown.Wait().ok());
  }
  for (int rank : {0, 1}) {
    for (uint64_t number : {1, 2, 3}) {
      const pool::CallRecord& record =
          world.pool(rank).recorder(rank)->calls[number];
      EXPECT_EQ(record.identity, 99 + number);
      EXPECT_EQ(record.group, HashGroup(members));
      EXPECT_NE(record.started, 0u);
      EXPECT_GE(record.finished, record.started);
    }
  }
}

}  // namespace
}  // namespace jax_cxl::comm
