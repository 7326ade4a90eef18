// Sanitizers: address, thread

#include "cc/comm/endpoint.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <thread>

#include "cc/testing/world/int32_call.h"
#include "cc/testing/world/world.h"

namespace jax_cxl::comm {
namespace {

using plan::Op;

std::vector<int32_t> Everyone(const World& world) {
  std::vector<int32_t> members(world.size());
  std::iota(members.begin(), members.end(), 0);
  return members;
}

struct Shape {
  int ranks;
  uint64_t slot_bytes;
  int num_slots;
  int devices;
};

class EndpointTest : public testing::TestWithParam<Shape> {
 protected:
  Options options() const {
    Options options;
    options.slot_bytes = GetParam().slot_bytes;
    options.num_slots = GetParam().num_slots;
    return options;
  }
};

// Each rank starts the same independent calls in its own order.
TEST_P(EndpointTest, CallsStartedInAnyOrderMatch) {
  const int ranks = GetParam().ranks;
  World world(ranks, options(), 64 << 20, GetParam().devices);
  const std::vector<Op> ops = {Op::kAllReduce, Op::kAllGather,
                               Op::kReduceScatter, Op::kAllToAll, Op::kBarrier};
  constexpr int kCalls = 40;
  std::vector<std::vector<std::vector<int32_t>>> inputs(ranks), outputs(ranks);
  auto count_of = [&](int k) -> uint64_t {
    return ops[k % ops.size()] == Op::kBarrier ? 0 : 1 + 977 * k;
  };
  for (int r = 0; r < ranks; ++r) {
    for (int k = 0; k < kCalls; ++k) {
      const uint64_t count = count_of(k);
      const Op op = ops[k % ops.size()];
      const bool many_in = op == Op::kReduceScatter || op == Op::kAllToAll;
      const bool many_out = op == Op::kAllGather || op == Op::kAllToAll;
      inputs[r].emplace_back(count * (many_in ? ranks : 1));
      outputs[r].emplace_back(count * (many_out ? ranks : 1), -1);
      for (size_t i = 0; i < inputs[r][k].size(); ++i)
        inputs[r][k][i] = static_cast<int32_t>(1000003 * r + 31 * k + i);
    }
  }
  Countdown countdown(ranks * kCalls);
  std::vector<std::thread> threads;
  for (int r = 0; r < ranks; ++r) {
    threads.emplace_back([&, r] {
      std::vector<int> order(kCalls);
      std::iota(order.begin(), order.end(), 0);
      std::shuffle(order.begin(), order.end(), std::mt19937(r));
      for (int k : order)
        countdown.StartCall(
            world.endpoint(r), Everyone(world),
            Int32Call(ops[k % ops.size()], 100 + k, ranks, r, count_of(k),
                      inputs[r][k].data(), outputs[r][k].data()));
    });
  }
  for (auto& thread : threads) thread.join();
  Status status = countdown.Wait();
  ASSERT_TRUE(status.ok()) << status.message();

  for (int k = 0; k < kCalls; ++k) {
    const uint64_t count = count_of(k);
    const Op op = ops[k % ops.size()];
    for (int r = 0; r < ranks; ++r) {
      std::vector<int32_t> want(outputs[r][k].size(), 0);
      for (int p = 0; p < ranks; ++p) {
        for (uint64_t i = 0; i < count; ++i) {
          if (op == Op::kAllReduce) want[i] += inputs[p][k][i];
          if (op == Op::kAllGather) want[p * count + i] = inputs[p][k][i];
          if (op == Op::kReduceScatter) want[i] += inputs[p][k][r * count + i];
          if (op == Op::kAllToAll)
            want[p * count + i] = inputs[p][k][r * count + i];
        }
      }
      ASSERT_EQ(outputs[r][k], want) << "call " << k << " rank " << r;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, EndpointTest,
                         testing::Values(Shape{2, 4096, 2, 1},
                                         Shape{2, 1 << 20, 4, 1},
                                         Shape{3, 4096, 3, 2},
                                         Shape{4, 8192, 4, 6},
                                         Shape{5, 65536, 5, 3}));

// More calls than fit into the pool's rings of submissions and announcements.
TEST(EndpointOrderTest, ManyCallsUnderWay) {
  World world(3, Options());
  constexpr int kCalls = 500;
  std::vector<int32_t> inputs(3 * kCalls), outputs(3 * kCalls);
  std::iota(inputs.begin(), inputs.end(), 0);
  Countdown countdown(3 * kCalls);
  // Rank 2 comes last and starts in reverse order. All other calls are under
  // way by then.
  for (int r = 0; r < 3; ++r) {
    for (int i = 0; i < kCalls; ++i) {
      const int k = r == 2 ? kCalls - 1 - i : i;
      countdown.StartCall(
          world.endpoint(r), Everyone(world),
          Int32Call(Op::kAllReduce, k, 3, r, 1, &inputs[r * kCalls + k],
                    &outputs[r * kCalls + k]));
    }
  }
  Status status = countdown.Wait();
  ASSERT_TRUE(status.ok()) << status.message();
  for (int r = 0; r < 3; ++r)
    for (int k = 0; k < kCalls; ++k)
      ASSERT_EQ(outputs[r * kCalls + k], 3 * k + 3 * kCalls);
}

// Rank 0 starts a large call, which would fill all slots, and rank 1 does not
// start it yet. This must not delay a later call that both ranks start.
TEST(EndpointOrderTest, UnstartedCallHoldsNothingUp) {
  Options options;
  options.slot_bytes = 4096;
  options.num_slots = 2;
  World world(2, options);
  std::vector<int32_t> large(1 << 16, 1), sum(1 << 16);
  int32_t small[2] = {3, 4}, small_sum[2];
  Countdown late(2), prompt(2);
  late.StartCall(world.endpoint(0), {0, 1},
                 Int32Call(Op::kAllReduce, 1, 2, 0, large.size(), large.data(),
                           sum.data()));
  for (int r = 0; r < 2; ++r)
    prompt.StartCall(
        world.endpoint(r), {0, 1},
        Int32Call(Op::kAllReduce, 2, 2, r, 1, &small[r], &small_sum[r]));
  ASSERT_TRUE(prompt.Wait().ok());
  EXPECT_EQ(small_sum[0], 7);
  std::vector<int32_t> other_sum(1 << 16);
  late.StartCall(world.endpoint(1), {0, 1},
                 Int32Call(Op::kAllReduce, 1, 2, 1, large.size(), large.data(),
                           other_sum.data()));
  ASSERT_TRUE(late.Wait().ok());
  EXPECT_EQ(sum, other_sum);
  EXPECT_EQ(sum[77], 2);
}

// The groups of one rank do not wait for each other.
TEST(EndpointOrderTest, GroupsAreIndependent) {
  World world(4, Options());
  const std::vector<std::vector<int32_t>> groups = {
      {0, 1}, {2, 3}, {0, 2}, {1, 3}, {3, 2, 1, 0}};
  std::vector<int32_t> inputs = {1, 10, 100, 1000};
  std::vector<std::vector<int32_t>> outputs(groups.size(),
                                            std::vector<int32_t>(4));
  Countdown countdown(2 * 4 + 4);
  std::vector<std::thread> threads;
  for (int r = 0; r < 4; ++r) {
    threads.emplace_back([&, r] {
      for (size_t i = 0; i < groups.size(); ++i) {
        const size_t g = (i + r) % groups.size();
        auto self = std::find(groups[g].begin(), groups[g].end(), r);
        if (self == groups[g].end()) continue;
        countdown.StartCall(
            world.endpoint(r), groups[g],
            Int32Call(Op::kAllReduce, 1, static_cast<int>(groups[g].size()),
                      static_cast<int>(self - groups[g].begin()), 1, &inputs[r],
                      &outputs[g][r]));
      }
    });
  }
  for (auto& thread : threads) thread.join();
  ASSERT_TRUE(countdown.Wait().ok());
  EXPECT_EQ(outputs[0], (std::vector<int32_t>{11, 11, 0, 0}));
  EXPECT_EQ(outputs[1], (std::vector<int32_t>{0, 0, 1100, 1100}));
  EXPECT_EQ(outputs[2], (std::vector<int32_t>{101, 0, 101, 0}));
  EXPECT_EQ(outputs[3], (std::vector<int32_t>{0, 1010, 0, 1010}));
  EXPECT_EQ(outputs[4], (std::vector<int32_t>{1111, 1111, 1111, 1111}));
}

// Both ranks report the calls of both, whichever rank is first in the group.
TEST(EndpointErrorTest, MismatchNamesBothSides) {
  World world(2, Options());
  int32_t data[4] = {}, sums[4] = {};
  std::vector<std::unique_ptr<Countdown>> countdowns;
  for (int r = 0; r < 2; ++r) {
    countdowns.push_back(std::make_unique<Countdown>(1));
    auto call =
        Int32Call(Op::kAllReduce, 1, 2, r, r + 1, &data[2 * r], &sums[2 * r]);
    call->name = r == 0 ? "first" : "second";
    countdowns[r]->StartCall(world.endpoint(r), {0, 1}, std::move(call));
  }
  for (auto& countdown : countdowns) {
    Status status = countdown->Wait();
    EXPECT_EQ(status.code(), Code::kMismatch);
    EXPECT_NE(status.message().find("first: all_reduce sum of 1 int32"),
              std::string::npos)
        << status.message();
    EXPECT_NE(status.message().find("second: all_reduce sum of 2 int32"),
              std::string::npos)
        << status.message();
  }
}

TEST(EndpointErrorTest, LatePeerIsNamed) {
  Options options;
  options.timeout_s = 0.2;
  World world(2, options);
  int32_t value = 1, sum;
  for (int r : {0, 1}) {
    Countdown countdown(1);
    countdown.StartCall(world.endpoint(r), {0, 1},
                        Int32Call(Op::kAllReduce, r, 2, r, 1, &value, &sum));
    Status status = countdown.Wait();
    EXPECT_EQ(status.code(), Code::kDeadlineExceeded);
    EXPECT_NE(status.message().find("rank " + std::to_string(1 - r)),
              std::string::npos)
        << status.message();
  }
}

TEST(EndpointErrorTest, PeerThatGaveUpEndsTheWait) {
  World world(2, Options());
  int32_t value = 1, sum;
  Countdown countdown(1);
  countdown.StartCall(world.endpoint(0), {0, 1},
                      Int32Call(Op::kAllReduce, 1, 2, 0, 1, &value, &sum));
  world.peers(1).GiveUp(1, Error(Code::kDataLoss, "because of a test"));
  Status status = countdown.Wait();
  EXPECT_EQ(status.code(), Code::kDataLoss);
  EXPECT_NE(status.message().find("because of a test"), std::string::npos);
  // Later calls fail with the same error, because the state of the group's
  // rings is unknown.
  Countdown again(1);
  again.StartCall(world.endpoint(0), {0, 1},
                  Int32Call(Op::kAllReduce, 2, 2, 0, 1, &value, &sum));
  EXPECT_EQ(again.Wait().code(), Code::kDataLoss);
}

TEST(EndpointErrorTest, PoolTooSmallForTheGroup) {
  Options options;
  options.slot_bytes = 8 << 20;
  World world(2, options, 8 << 20);
  int32_t value = 1, sum;
  Countdown countdown(1);
  countdown.StartCall(world.endpoint(0), {0, 1},
                      Int32Call(Op::kAllReduce, 1, 2, 0, 1, &value, &sum));
  Status status = countdown.Wait();
  EXPECT_EQ(status.code(), Code::kResourceExhausted);
  EXPECT_NE(status.message().find("33554432 more bytes"), std::string::npos)
      << status.message();
}

TEST(EndpointErrorTest, RankOutsideTheGroup) {
  World world(2, Options());
  int32_t value = 1, sum;
  Countdown countdown(1);
  countdown.StartCall(world.endpoint(0), {1},
                      Int32Call(Op::kAllReduce, 1, 1, 0, 1, &value, &sum));
  EXPECT_EQ(countdown.Wait().code(), Code::kInvalidArgument);
}

TEST(EndpointErrorTest, ShutdownFailsCallsUnderWay) {
  Countdown countdown(1);
  int32_t value = 1, sum;
  {
    World world(2, Options());
    countdown.StartCall(world.endpoint(0), {0, 1},
                        Int32Call(Op::kAllReduce, 1, 2, 0, 1, &value, &sum));
  }
  EXPECT_EQ(countdown.Wait().code(), Code::kFailedPrecondition);
}

TEST(EndpointStatsTest, CountBytes) {
  World world(2, Options());
  std::vector<int32_t> data(4096);
  std::vector<std::vector<int32_t>> outs(2, std::vector<int32_t>(8192));
  Countdown countdown(2);
  for (int r = 0; r < 2; ++r)
    countdown.StartCall(
        world.endpoint(r), {0, 1},
        Int32Call(Op::kAllGather, 1, 2, r, 4096, data.data(), outs[r].data()));
  ASSERT_TRUE(countdown.Wait().ok());
  for (int r = 0; r < 2; ++r) {
    const Stats stats = world.endpoint(r).stats();
    EXPECT_EQ(stats.calls, 1u);
    EXPECT_EQ(stats.bytes_published, 16384u);
    EXPECT_EQ(stats.bytes_retrieved, 16384u);
    EXPECT_GT(stats.seconds, 0);
    EXPECT_EQ(world.endpoint(r).stats().seconds, stats.seconds);
  }
}

}  // namespace
}  // namespace jax_cxl::comm
