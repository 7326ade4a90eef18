// Sanitizers: address, thread

#include "cc/comm/level_calls.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <mutex>
#include <numeric>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "cc/comm/completions.h"
#include "cc/testing/world/int32_call.h"
#include "cc/testing/world/world.h"

namespace jax_cxl::comm {
namespace {

using plan::Op;

constexpr Op kOps[] = {Op::kAllReduce, Op::kAllGather, Op::kReduceScatter,
                       Op::kAllToAll, Op::kBroadcast};

// One rank's buffers and outcome in one call.
struct Member {
  std::vector<int32_t> input, output;
  std::promise<Status> outcome;
};

// A grid of processes with four ranks each. The places of the ranks in the
// group are not in order.
cpu::Grid GridOf(int processes) {
  cpu::Grid grid{processes, 4, {}};
  for (int p = 0; p < processes; ++p)
    for (int i = 0; i < 4; ++i) grid.at.push_back((3 - i) * processes + p);
  return grid;
}

std::vector<int32_t> RanksOf(const cpu::Grid& grid) {
  std::vector<int32_t> ranks(grid.at.size());
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

std::unique_ptr<Call> MakeCall(Op op, uint64_t identity, int ranks, int place,
                               uint64_t count, Member* member) {
  auto call = Int32Call(op, identity, ranks, place, count);
  call->request.root = 2;
  member->input.resize(plan::InputBytes(call->request) / 4);
  std::iota(member->input.begin(), member->input.end(), 1'000'000 * place);
  member->output.assign(plan::OutputBytes(call->request) / 4, -1);
  call->input = reinterpret_cast<const std::byte*>(member->input.data());
  call->output = reinterpret_cast<std::byte*>(member->output.data());
  call->done = [member](const Status& status) {
    member->outcome.set_value(status);
  };
  return call;
}

// Returns element i of the output of the rank at `place`. Blocks have `count`
// elements.
int32_t Expected(Op op, int ranks, int place, size_t i, uint64_t count) {
  const auto number = static_cast<int32_t>(i % count);
  const auto block = static_cast<int32_t>(i / count);
  const int32_t sum_of_places = 1'000'000 * (ranks * (ranks - 1) / 2);
  const auto own = static_cast<int32_t>(place * count);
  switch (op) {
    case Op::kAllReduce:
      return ranks * number + sum_of_places;
    case Op::kReduceScatter:
      return ranks * (own + number) + sum_of_places;
    case Op::kAllGather:
      return 1'000'000 * block + number;
    case Op::kAllToAll:
      return 1'000'000 * block + own + number;
    default:  // broadcast from the rank at place 2
      return 2'000'000 + number;
  }
}

class LevelCallsTest : public testing::Test {
 protected:
  std::unique_ptr<LevelCalls> Make(double timeout_s = 300,
                                   World* world = nullptr) {
    Options options;
    options.timeout_s = timeout_s;
    // With this value, the outputs of some calls bypass the caches, and those
    // of others do not.
    options.tuning.past_caches_bytes = uint64_t{256} << 10;
    return std::make_unique<LevelCalls>(
        &completions_,
        [world](int32_t rank, const std::vector<int32_t>& members,
                std::unique_ptr<Call> call) {
          return world->endpoint(rank).StartCall(members, std::move(call));
        },
        [this](int32_t rank, LocalWait wait) {
          std::lock_guard lock(waits_mutex_);
          waits_.emplace_back(rank, std::move(wait));
        },
        [this] {
          return failed_ ? Error(Code::kPeerLost, "rank 9 died") : OkStatus();
        },
        options);
  }
  void Start(LevelCalls* calls, const cpu::Grid& grid,
             std::unique_ptr<Call> call, Member* member) {
    if (auto status = calls->Start(RanksOf(grid), grid, std::move(call)))
      member->outcome.set_value(*status);
  }
  // Starts the call of only one rank of a process, the rank at `place`.
  void StartOne(LevelCalls* calls, Op op, int place, Member* member) {
    Start(calls, GridOf(1), MakeCall(op, 1, 4, place, 3, member), member);
  }

  Completions completions_;
  std::atomic<bool> failed_ = false;
  std::mutex waits_mutex_;
  std::vector<std::pair<int32_t, LocalWait>> waits_;
};

// Ranks start independent calls in different orders, at the same time.
void RunInAnyOrder(LevelCalls* const* of_process, const cpu::Grid& grid) {
  constexpr int kCalls = 30;
  const auto ranks = static_cast<int>(grid.at.size());
  std::vector<std::vector<Member>> members(ranks);
  for (auto& of_member : members) of_member = std::vector<Member>(kCalls);
  // The last five calls are long: one of each operation.
  auto count_of = [](int k) -> uint64_t {
    return k < kCalls - 5 ? 1 + 97 * k : 40'001 + k;
  };
  std::vector<std::thread> threads;
  for (int cell = 0; cell < ranks; ++cell)
    threads.emplace_back([&, cell] {
      const int place = grid.at[cell];
      LevelCalls* calls = of_process[cell / grid.per_process];
      std::vector<int> order(kCalls);
      std::iota(order.begin(), order.end(), 0);
      std::shuffle(order.begin(), order.end(), std::mt19937(cell));
      for (int k : order) {
        Member* member = &members[place][k];
        auto status = calls->Start(
            RanksOf(grid), grid,
            MakeCall(kOps[k % 5], 100 + k, ranks, place, count_of(k), member));
        if (status) member->outcome.set_value(*status);
      }
    });
  for (std::thread& thread : threads) thread.join();
  for (int place = 0; place < ranks; ++place)
    for (int k = 0; k < kCalls; ++k) {
      Member& member = members[place][k];
      const Status status = member.outcome.get_future().get();
      ASSERT_TRUE(status.ok()) << status.message();
      std::vector<int32_t> expected(member.output.size());
      for (size_t i = 0; i < expected.size(); ++i)
        expected[i] = Expected(kOps[k % 5], ranks, place, i, count_of(k));
      ASSERT_TRUE(member.output == expected)
          << "call " << k << " place " << place;
    }
}

TEST_F(LevelCallsTest, OneProcessNeedsNoPool) {
  auto calls = Make();
  LevelCalls* of_process[] = {calls.get()};
  RunInAnyOrder(of_process, GridOf(1));
}

TEST_F(LevelCallsTest, SeveralProcessesShareThePool) {
  for (const int processes : {2, 3}) {
    Options options;
    options.slot_bytes = 16 << 10;
    options.num_slots = 4;
    World world(4 * processes, options);
    std::vector<std::unique_ptr<LevelCalls>> calls;
    std::vector<LevelCalls*> of_process;
    for (int p = 0; p < processes; ++p) {
      calls.push_back(Make(300, &world));
      of_process.push_back(calls.back().get());
    }
    RunInAnyOrder(of_process.data(), GridOf(processes));
  }
}

TEST_F(LevelCallsTest, AFailureOfTheJobEndsCallsThatWait) {
  auto calls = Make();
  Member member;
  StartOne(calls.get(), Op::kAllGather, 0, &member);
  auto outcome = member.outcome.get_future();
  EXPECT_EQ(outcome.wait_for(std::chrono::milliseconds(200)),
            std::future_status::timeout);
  failed_ = true;
  EXPECT_EQ(outcome.get().message(), "rank 9 died");
}

// Noted waits tell the stall detector of calls that have not come to an
// endpoint.
TEST_F(LevelCallsTest, LongWaitsAreNoted) {
  auto calls = Make();
  Member members[4];
  StartOne(calls.get(), Op::kAllGather, 2, &members[2]);
  for (bool noted = false; !noted;) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    std::lock_guard lock(waits_mutex_);
    noted = !waits_.empty();
  }
  {
    std::lock_guard lock(waits_mutex_);
    ASSERT_EQ(waits_.size(), 1);
    EXPECT_EQ(waits_[0].first, 2);
    EXPECT_EQ(waits_[0].second.ranks.size(), 4);
    EXPECT_TRUE(waits_[0].second.call->in_levels);
    EXPECT_FALSE(waits_[0].second.over->load());
  }
  for (int place : {0, 1, 3})
    StartOne(calls.get(), Op::kAllGather, place, &members[place]);
  for (Member& member : members)
    EXPECT_TRUE(member.outcome.get_future().get().ok());
  EXPECT_TRUE(waits_[0].second.over->load());
}

TEST_F(LevelCallsTest, ARankThatDoesNotComeIsNamed) {
  auto calls = Make(/*timeout_s=*/0.1);
  Member members[3];
  for (int place : {3, 1, 0})
    StartOne(calls.get(), Op::kAllGather, place,
             &members[place == 3 ? 2 : place]);
  const Status status = members[0].outcome.get_future().get();
  EXPECT_EQ(status.code(), Code::kDeadlineExceeded);
  EXPECT_NE(status.message().find("rank 2 of this process did not start"),
            std::string::npos)
      << status.message();
  for (int i : {1, 2})
    EXPECT_EQ(members[i].outcome.get_future().get().code(),
              Code::kDeadlineExceeded);
}

TEST_F(LevelCallsTest, TheEndFailsCallsThatWait) {
  auto calls = Make();
  Member member;
  StartOne(calls.get(), Op::kAllToAll, 1, &member);
  calls.reset();
  EXPECT_EQ(member.outcome.get_future().get().code(),
            Code::kFailedPrecondition);
}

// A part that fails ends the calls of all ranks of the process, after the other
// parts have ended.
TEST_F(LevelCallsTest, AnErrorOfAPartEndsAllCalls) {
  Options options;
  std::vector<std::unique_ptr<Call>> parts;
  LevelCalls calls(
      &completions_,
      [&](int32_t, const std::vector<int32_t>&,
          std::unique_ptr<Call> call) -> std::optional<Status> {
        parts.push_back(std::move(call));
        return std::nullopt;
      },
      [](int32_t, LocalWait) {}, [] { return OkStatus(); }, options);
  const cpu::Grid grid = GridOf(2);
  Member members[4];
  for (int i = 0; i < 4; ++i)
    Start(&calls, grid,
          MakeCall(Op::kAllReduce, 1, 8, grid.At(0, i), 1000, &members[i]),
          &members[i]);
  ASSERT_EQ(parts.size(), 4);
  parts[2]->done(Error(Code::kPeerLost, "rank 5 died"));
  parts[0]->done(OkStatus());
  parts[1]->done(OkStatus());
  auto first = members[0].outcome.get_future();
  EXPECT_EQ(first.wait_for(std::chrono::milliseconds(50)),
            std::future_status::timeout);
  parts[3]->done(OkStatus());
  EXPECT_EQ(first.get().message(), "rank 5 died");
  for (int i : {1, 2, 3})
    EXPECT_EQ(members[i].outcome.get_future().get().code(), Code::kPeerLost);
}

}  // namespace
}  // namespace jax_cxl::comm
