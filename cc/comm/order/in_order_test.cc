// Sanitizers: address, thread

#include "cc/comm/order/in_order.h"

#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "cc/comm/record/recorded_calls.h"
#include "cc/testing/world/world.h"

namespace jax_cxl::comm {
namespace {

using plan::Op;

// Runs `program(rank, group)` as the threads of all ranks.
void RunRanks(World& world, const std::function<void(int, InOrder*)>& program) {
  std::vector<int32_t> everyone(world.size());
  std::iota(everyone.begin(), everyone.end(), 0);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world.size(); ++rank) {
    threads.emplace_back([&, rank] {
      auto group = OrDie(world.endpoint(rank).OpenInOrder(everyone));
      program(rank, group.get());
    });
  }
  for (std::thread& thread : threads) thread.join();
}

Call MakeCall(Op op, const World& world, int rank, uint64_t count,
              const std::vector<int32_t>& input, std::vector<int32_t>* output) {
  Call call;
  call.request.op = op;
  call.request.num_ranks = world.size();
  call.request.rank = rank;
  call.request.count = count;
  call.request.element_bytes = 4;
  call.dtype = DType::kInt32;
  call.input = reinterpret_cast<const std::byte*>(input.data());
  call.output = reinterpret_cast<std::byte*>(output->data());
  call.name = OpName(op);
  return call;
}

class InOrderTest : public testing::TestWithParam<pool::CoherenceMode> {
 protected:
  void SetUp() override {
    if (!pool::CheckCoherenceSupported(GetParam()).ok())
      GTEST_SKIP() << "no cache line instructions";
  }
};

// Sizes on both sides of what a submission carries.
TEST_P(InOrderTest, CallsOfAllSizes) {
  Options options;
  options.slot_bytes = 16384;
  options.tuning.past_caches_bytes = 10000;
  World world(3, options, 64 << 20, 1, GetParam());
  RunRanks(world, [&](int rank, InOrder* group) {
    for (uint64_t count : {1, 2, 5, 100, 1023, 1024, 1025, 30000}) {
      std::vector<int32_t> input(3 * count), output(3 * count, -1);
      for (size_t i = 0; i < input.size(); ++i)
        input[i] = static_cast<int32_t>(1000 * rank + i);
      Call sum = MakeCall(Op::kAllReduce, world, rank, count, input, &output);
      ASSERT_TRUE(group->Run(&sum).ok());
      for (uint64_t i = 0; i < count; ++i)
        ASSERT_EQ(output[i], 3000 + 3 * static_cast<int32_t>(i));
      Call swap = MakeCall(Op::kAllToAll, world, rank, count, input, &output);
      ASSERT_TRUE(group->Run(&swap).ok());
      for (uint64_t i = 0; i < 3 * count; ++i)
        ASSERT_EQ(output[i], static_cast<int32_t>(1000 * (i / count) +
                                                  rank * count + i % count));
    }
  });
}

// The root reads nothing and runs ahead, by more calls than rings hold.
TEST_P(InOrderTest, RootRunsAhead) {
  World world(3, Options(), 64 << 20, 1, GetParam());
  constexpr int kCalls = 1000;
  RunRanks(world, [&](int rank, InOrder* group) {
    std::vector<int32_t> input(1), output(1);
    for (int k = 0; k < kCalls; ++k) {
      input[0] = 10 * k + rank;
      Call call = MakeCall(Op::kBroadcast, world, rank, 1, input, &output);
      call.request.root = k / 100 % 3;
      ASSERT_TRUE(group->Run(&call).ok());
      ASSERT_EQ(output[0], 10 * k + k / 100 % 3);
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Coherence, InOrderTest,
                         testing::Values(pool::CoherenceMode::kCoherent,
                                         pool::CoherenceMode::kUncached,
                                         pool::CoherenceMode::kFlush));

TEST(InOrderErrorTest, MismatchNamesBothSides) {
  for (Op other : {Op::kAllGather, Op::kBroadcast}) {
    World world(2, Options());
    RunRanks(world, [&](int rank, InOrder* group) {
      std::vector<int32_t> input(4), output(8);
      Status status;
      // Who reads nothing finds out later.
      for (int k = 0; k < 200 && status.ok(); ++k) {
        Call call = MakeCall(rank == 0 ? other : Op::kAllReduce, world, rank, 4,
                             input, &output);
        status = group->Run(&call);
      }
      EXPECT_EQ(status.code(), Code::kMismatch);
      EXPECT_NE(status.message().find("all_reduce sum of 4 int32"),
                std::string::npos)
          << status.message();
      EXPECT_NE(status.message().find(std::string(OpName(other)) + " of 4"),
                std::string::npos)
          << status.message();
    });
  }
}

TEST(InOrderErrorTest, LatePeerIsNamed) {
  Options options;
  options.timeout_s = 0.2;
  World world(2, options);
  RunRanks(world, [&](int rank, InOrder* group) {
    if (rank == 1) return;
    std::vector<int32_t> input(4), output(4);
    Call call = MakeCall(Op::kAllReduce, world, rank, 4, input, &output);
    const Status status = group->Run(&call);
    EXPECT_EQ(status.code(), Code::kDeadlineExceeded);
    EXPECT_NE(status.message().find("for rank 1"), std::string::npos)
        << status.message();
    EXPECT_NE(status.message().find("which has not started it"),
              std::string::npos)
        << status.message();
    EXPECT_EQ(group->Run(&call).code(), Code::kDeadlineExceeded);
  });
}

// The root of broadcasts waits for nobody until its ring is full.
TEST(InOrderErrorTest, WhoeverHoldsUpTheRingIsNamed) {
  for (bool leaves : {false, true}) {
    Options options;
    options.timeout_s = leaves ? 60 : 0.2;
    World world(3, options);
    RunRanks(world, [&](int rank, InOrder* group) {
      std::vector<int32_t> input(4), output(4);
      Status status;
      for (int k = 0; k < (rank == 1 ? 1 : 200) && status.ok(); ++k) {
        Call call = MakeCall(Op::kBroadcast, world, rank, 4, input, &output);
        status = group->Run(&call);
      }
      if (rank == 1 && leaves) world.endpoint(1).Leave("");
      if (rank != 0) return;
      EXPECT_EQ(status.code(),
                leaves ? Code::kMismatch : Code::kDeadlineExceeded);
      EXPECT_NE(status.message().find(leaves ? "rank 1" : "for rank 1"),
                std::string::npos)
          << status.message();
    });
  }
}

// One in 40 was one before waits looked again for what they had waited for.
TEST(InOrderErrorTest, LeavingRightAfterTheLastCallIsNoError) {
  for (int k = 0; k < 300; ++k) {
    World world(2, Options(), 8 << 20);
    RunRanks(world, [&](int rank, InOrder* group) {
      std::vector<int32_t> input(4), output(4);
      Call call = MakeCall(Op::kBroadcast, world, rank, 4, input, &output);
      if (rank == 0)
        std::this_thread::sleep_for(std::chrono::microseconds(3000 + 37 * k));
      const Status status = group->Run(&call);
      EXPECT_TRUE(status.ok()) << status.message();
      if (rank == 0) world.endpoint(0).Leave("");
    });
  }
}

// Beside calls that the endpoint records from another thread.
TEST(InOrderRecorderTest, EveryCallIsRecordedOnce) {
  World world(2, Options());
  constexpr int kCalls = 500;
  RunRanks(world, [&](int rank, InOrder* group) {
    std::vector<int32_t> input(4), output(4), others(4);
    std::thread other([&] {
      for (int k = 1; k <= kCalls; ++k) {
        auto call = std::make_unique<Call>(
            MakeCall(Op::kAllReduce, world, rank, 4, input, &others));
        call->identity = k;
        Countdown countdown(1);
        countdown.StartCall(world.endpoint(rank), {0, 1}, std::move(call));
        ASSERT_TRUE(countdown.Wait().ok());
      }
    });
    for (int k = 0; k < kCalls; ++k) {
      Call call = MakeCall(Op::kAllReduce, world, rank, 4, input, &output);
      ASSERT_TRUE(group->Run(&call).ok());
    }
    other.join();
  });
  for (int rank : {0, 1}) {
    const pool::Doorbells doorbells(world.pool(rank).coherence(),
                                    world.pool(rank).epoch());
    std::map<uint64_t, std::vector<uint64_t>> identities;  // by group
    for (const RecordedCall& call :
         ReadCalls(*world.pool(rank).recorder(rank), doorbells, 3 * kCalls)) {
      identities[call.group].push_back(call.identity);
      EXPECT_GE(call.started, call.submitted);
      EXPECT_GE(call.finished, call.started);
    }
    std::vector<uint64_t> expected(kCalls);
    std::iota(expected.begin(), expected.end(), 1);
    ASSERT_EQ(identities.size(), 2u);
    for (const auto& [group, seen] : identities) EXPECT_EQ(seen, expected);
  }
}

}  // namespace
}  // namespace jax_cxl::comm
