// Sanitizers: address, thread

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <deque>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "cc/comm/connect/connection.h"
#include "cc/comm/endpoint.h"
#include "cc/testing/world/int32_call.h"
#include "cc/testing/world/world.h"

namespace jax_cxl::comm {
namespace {

using plan::Op;

// The memory of a rank is enough for about seven groups.
constexpr uint64_t kPoolBytes = uint64_t{8} << 20;

Options SmallSlots() {
  Options options;
  options.slot_bytes = 16384;
  return options;
}

// A sum over a group. A sum of few elements is eager, and a sum of many
// elements uses slots.
struct Sum {
  std::vector<int32_t> members;
  uint64_t identity;
  uint64_t count;
  std::vector<std::vector<int32_t>> inputs = {}, outputs = {};

  void Fill() {
    for (size_t m = 0; m < members.size(); ++m) {
      inputs.emplace_back(count);
      for (uint64_t i = 0; i < count; ++i)
        inputs[m][i] = static_cast<int32_t>(1000 * identity + 7 * m + i);
      outputs.emplace_back(count, -1);
    }
  }
  bool Right() const {
    std::vector<int32_t> want(count);
    for (const auto& input : inputs)
      std::transform(want.begin(), want.end(), input.begin(), want.begin(),
                     std::plus<>());
    return std::ranges::all_of(outputs,
                               [&](const auto& out) { return out == want; });
  }
  void Start(World& world, int rank, Countdown* countdown) {
    const auto self = std::ranges::find(members, rank) - members.begin();
    countdown->StartCall(
        world.endpoint(rank), members,
        Int32Call(Op::kAllReduce, identity, static_cast<int>(members.size()),
                  static_cast<int>(self), count, inputs[self].data(),
                  outputs[self].data()));
  }
};

// Returns a sum for every subset of two or more of the ranks, `times` times.
// The members of each sum are in random order.
std::deque<Sum> SumsOfAllSubsets(int ranks, int times) {
  std::mt19937 random(ranks);
  std::deque<Sum> sums;
  for (int time = 0; time < times; ++time)
    for (unsigned set = 3; set < 1u << ranks; ++set) {
      std::vector<int32_t> members;
      for (int rank = 0; rank < ranks; ++rank)
        if (set >> rank & 1) members.push_back(rank);
      if (members.size() < 2) continue;
      std::shuffle(members.begin(), members.end(), random);
      const uint64_t identity = sums.size() + 1;
      sums.push_back({std::move(members), identity,
                      identity % 3 == 0 ? uint64_t{6000} : identity});
      sums.back().Fill();
    }
  return sums;
}

// Each rank starts its sums at its own pace: it waits for the result of one sum
// before it starts the next one, and sometimes sleeps in between.
void RunInTurn(World& world, std::deque<Sum>& sums) {
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world.size(); ++rank) {
    threads.emplace_back([&, rank] {
      std::mt19937 random(rank);
      for (Sum& sum : sums) {
        if (std::ranges::find(sum.members, rank) == sum.members.end()) continue;
        if (random() % 16 == 0)
          std::this_thread::sleep_for(std::chrono::microseconds(300));
        Countdown done(1);
        sum.Start(world, rank, &done);
        const Status status = done.Wait();
        ASSERT_TRUE(status.ok()) << status.message();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const Sum& sum : sums) EXPECT_TRUE(sum.Right()) << sum.identity;
}

TEST(MemoryOfGroupsTest, ManyMoreGroupsThanTheMemoryHolds) {
  World world(6, SmallSlots(), 3 * kPoolBytes / 2);
  auto sums = SumsOfAllSubsets(6, /*times=*/9);
  EXPECT_GT(sums.size(), 500u);
  RunInTurn(world, sums);
}

TEST(MemoryOfGroupsTest, ManyMoreGroupsThanAnIncoherentPoolHolds) {
  if (!pool::FlushSupported()) GTEST_SKIP() << "needs cache line instructions";
  const uint64_t seed = std::random_device()();
  std::cout << "seed " << seed << std::endl;
  World world(4, SmallSlots(), kPoolBytes, 1, pool::CoherenceMode::kFlush,
              Incoherence{seed, ""});
  auto sums = SumsOfAllSubsets(4, /*times=*/4);
  RunInTurn(world, sums);
}

// Starts the sums of all 24 groups at once. Rank 1 starts them in the opposite
// order, so that all of them are under way at the same time.
Status RunAtOnce(World& world, std::deque<Sum>& sums) {
  Countdown countdown(static_cast<int>(sums.size()) * world.size());
  for (int rank = 0; rank < world.size(); ++rank)
    for (size_t i = 0; i < sums.size(); ++i)
      sums[rank == 1 ? sums.size() - 1 - i : i].Start(world, rank, &countdown);
  return countdown.Wait();
}

std::deque<Sum> SumsOfAllOrders() {
  std::deque<Sum> sums;
  std::vector<int32_t> members = {0, 1, 2, 3};
  do {
    sums.push_back({members, sums.size() + 1, 20'000});
    sums.back().Fill();
  } while (std::next_permutation(members.begin(), members.end()));
  return sums;
}

TEST(MemoryOfGroupsTest, TheErrorNamesAPoolThatIsLargeEnough) {
  auto sums = SumsOfAllOrders();
  uint64_t enough = 0;
  {
    World world(4, SmallSlots(), kPoolBytes);
    const Status status = RunAtOnce(world, sums);
    EXPECT_EQ(status.code(), Code::kResourceExhausted) << status.message();
    EXPECT_NE(status.message().find("is large enough (?size="),
              std::string::npos)
        << status.message();
    enough = NeededPoolBytes(world.pool(), SmallSlots(), sums.size());
    EXPECT_GT(enough, kPoolBytes);
  }
  World world(4, SmallSlots(), enough);
  const Status status = RunAtOnce(world, sums);
  EXPECT_TRUE(status.ok()) << status.message();
  for (const Sum& sum : sums) EXPECT_TRUE(sum.Right()) << sum.identity;
}

}  // namespace
}  // namespace jax_cxl::comm
