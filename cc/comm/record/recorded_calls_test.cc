// Sanitizers: address, thread

#include "cc/comm/record/recorded_calls.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "cc/base/ticks.h"
#include "cc/comm/record/recorder.h"
#include "cc/testing/world/world.h"

namespace jax_cxl::comm {
namespace {

class RecordedCallsTest : public testing::Test {
 protected:
  RecordedCallsTest()
      : world_(2, {}),
        doorbells_(world_.pool(1).coherence(), world_.pool(1).epoch()),
        recorder_(&world_.pool(1), 1) {}

  Call RecordCall(uint64_t identity) {
    Call call;
    call.identity = identity;
    call.request.op = plan::Op::kAllReduce;
    call.request.count = 3;
    call.dtype = DType::kFloat32;
    call.name = "psum";
    call.submitted = Ticks();
    recorder_.Record(&call, 5);
    return call;
  }
  pool::Recorder& recorder() { return *world_.pool(1).recorder(1); }
  std::vector<RecordedCall> Read(size_t most) {
    return ReadCalls(recorder(), doorbells_, most);
  }
  std::string LastCall() { return DescribeLastCall(recorder(), doorbells_); }

  World world_;
  pool::Doorbells doorbells_;
  Recorder recorder_;
};

double Realtime() {
  return std::chrono::duration<double>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

TEST_F(RecordedCallsTest, AreReadOldestFirstWithTimesOfDay) {
  const double before = Realtime();
  for (uint64_t identity : {11, 12, 13}) {
    const Call call = RecordCall(identity);
    recorder_.Start(call.number, Ticks());
    if (identity != 13) recorder_.Finish(call.number, OkStatus(), Ticks());
  }
  // Wait for two heartbeats, which determine the rate of the ticks.
  std::this_thread::sleep_for(std::chrono::milliseconds(250));
  const double after = Realtime();
  const std::vector<RecordedCall> calls = Read(2);
  ASSERT_EQ(calls.size(), 2u);
  EXPECT_EQ(calls[0].identity, 12u);
  EXPECT_EQ(calls[0].number, 2u);
  EXPECT_EQ(calls[0].group, 5u);
  EXPECT_EQ(calls[0].what, "psum: all_reduce sum of 3 float32");
  constexpr double kClockStep = 0.02;
  for (double time :
       {calls[0].submitted, calls[0].started, calls[0].finished}) {
    EXPECT_GT(time, before - kClockStep);
    EXPECT_LT(time, after + kClockStep);
  }
  EXPECT_EQ(calls[1].identity, 13u);
  EXPECT_EQ(calls[1].finished, 0);
  const auto clock = doorbells_.coherence().AcquireWords(recorder().clock);
  EXPECT_NEAR(1e-9 * static_cast<double>(clock.last.realtime_ns), after, 0.3);
}

TEST_F(RecordedCallsTest, SaysWhatARankDidLast) {
  EXPECT_EQ(LastCall(), "it had not called any collective");
  const Call call = RecordCall(1);
  EXPECT_EQ(LastCall(),
            "it was in its call number 1, psum: all_reduce sum of 3 float32, "
            "which it "
            "had just started");
  recorder_.Start(call.number, Ticks());
  EXPECT_NE(LastCall().find("which all ranks had started"), std::string::npos);
  recorder_.Finish(call.number, OkStatus(), Ticks());
  EXPECT_EQ(LastCall(),
            "it had finished its call 1, psum: all_reduce sum of 3 float32, "
            "and started no other");
}

TEST_F(RecordedCallsTest, FindsCallsAsFarBackAsTheyGo) {
  for (uint64_t identity = 1; identity <= pool::kRecordedCalls + 10; ++identity)
    recorder_.Finish(RecordCall(identity).number, OkStatus(), Ticks());
  EXPECT_FALSE(FindCall(recorder(), doorbells_, 10, 5));
  EXPECT_TRUE(FindCall(recorder(), doorbells_, 11, 5));
  EXPECT_FALSE(FindCall(recorder(), doorbells_, 11, 6)) << "another group";
  EXPECT_FALSE(Unfinished(recorder(), doorbells_, 11, 5).has_value());
  RecordCall(7777);
  RecordCall(7778);
  EXPECT_EQ(Unfinished(recorder(), doorbells_, 7778, 5)->identity, 7778u);
  EXPECT_EQ(Unfinished(recorder(), doorbells_, 7778, 6)->identity, 7777u);
  EXPECT_EQ(Unfinished(recorder(), doorbells_, 1, 5)->identity, 7777u);
}

TEST_F(RecordedCallsTest, AnotherJobsRecordsAreNone) {
  RecordCall(1);
  const pool::Doorbells other(world_.pool(1).coherence(),
                              world_.pool(1).epoch() + 1);
  EXPECT_TRUE(ReadCalls(recorder(), other, 10).empty());
}

TEST_F(RecordedCallsTest, AnyBytesAreReadWithoutHarm) {
  std::mt19937_64 random(1);
  std::vector<uint64_t> noise(sizeof(pool::Recorder) / 8);
  const auto recorder = std::make_unique<pool::Recorder>();
  for (int round = 0; round < 20; ++round) {
    for (uint64_t& word : noise) word = random();
    std::memcpy(static_cast<void*>(recorder.get()), noise.data(),
                sizeof(pool::Recorder));
    const uint64_t newest = round % 2 == 0 ? random() : random() % 5000;
    recorder->submitted_calls.word = doorbells_.Word(newest);
    for (uint64_t number = newest - 100; number != newest + 1; ++number)
      recorder->calls[number % pool::kRecordedCalls].number =
          doorbells_.Word(number);
    EXPECT_GE(ReadCalls(*recorder, doorbells_, 100).size(), 1u);
    EXPECT_FALSE(DescribeLastCall(*recorder, doorbells_).empty());
  }
}

}  // namespace
}  // namespace jax_cxl::comm
