// Ranks whose pool is damaged at random between their steps. Every call must
// end, most with an error. Nothing outside the pool and the calls' own buffers
// may change. All ranks run in this thread, so that a seed repeats a failure.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <deque>
#include <iostream>
#include <map>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "cc/comm/health/peers.h"
#include "cc/testing/fuzz/scribbler.h"
#include "cc/testing/soak/soak_call.h"
#include "cc/testing/world/stepped_rank.h"
#include "cc/testing/world/world.h"

namespace jax_cxl::comm {
namespace {

using soak::Pick;
using soak::Random;
using soak::SoakCall;

struct Outcomes {
  uint64_t worlds = 0;
  uint64_t wrong = 0;  // wrong elements, in worlds without damage
  std::map<Code, uint64_t> calls;
};

Options RandomOptions(Random& random) {
  constexpr uint64_t kSlotBytes[] = {640, 1024, 4096};
  Options options;
  options.slot_bytes = kSlotBytes[Pick(random, 0, 2)];
  options.num_slots = static_cast<int>(Pick(random, 2, 6));
  options.warn_after_s = 1e9;
  options.timeout_s = 60;
  return options;
}

std::unique_ptr<pool::Pool> RandomPool(Random& random, int ranks) {
  pool::PoolSpec spec;
  spec.paths = {"fuzz." + std::to_string(getpid())};
  spec.bytes = 16 << 20;
  spec.devices_per_path = static_cast<int>(Pick(random, 1, 2));
  auto pool = OrDie(pool::Pool::Create(spec, ranks));
  pool->Unlink();
  return pool;
}

// Runs one job from its start to its end. `period` is the mean number of steps
// between two instances of damage. 0: no damage.
void RunWorld(Random& random, uint64_t period, Outcomes* outcomes) {
  const int ranks = static_cast<int>(Pick(random, 2, 4));
  const std::unique_ptr<pool::Pool> pool = RandomPool(random, ranks);
  const Fence fence(*pool);
  Scribbler scribbler(*pool, random());
  std::vector<int> everyone(ranks);
  std::iota(everyone.begin(), everyone.end(), 0);
  for (int rank : everyone) Register(pool.get(), rank, 0, rank);
  // In a third of the worlds, damage happens before the ranks meet.
  if (period > 0 && random() % 3 == 0) scribbler.Scribble();
  auto peers = Peers::Start(pool.get(), everyone, 1e9);
  ++outcomes->worlds;
  if (!peers.ok()) {
    EXPECT_FALSE(peers.status().message().empty());
    ++outcomes->calls[peers.status().code()];
    return;
  }

  const Options options = RandomOptions(random);
  std::deque<SteppedRank> steppers;
  for (int rank : everyone)
    steppers.emplace_back(pool.get(), peers->get(), options, rank);
  std::vector<std::vector<int32_t>> groups = {everyone, {1, 0}};
  std::deque<SoakCall> calls;
  std::vector<std::deque<SoakCall*>> to_start(ranks);
  for (int k = 0; k < 30; ++k) {
    SoakCall& call = calls.emplace_back(random, groups[random() % 2], k, 3000);
    for (int32_t rank : call.members()) to_start[rank].push_back(&call);
  }
  size_t submitted = 0;
  Clock::time_point now = Clock::now();
  auto start_one = [&](int rank) {
    if (to_start[rank].empty()) return false;
    SoakCall& call = *to_start[rank].front();
    to_start[rank].pop_front();
    const auto& members = call.members();
    const auto self = std::find(members.begin(), members.end(), rank);
    steppers[rank].StartCall(
        members, call.ForMember(static_cast<int>(self - members.begin())));
    ++submitted;
    return true;
  };

  uint64_t steps = 0;
  int quiet = 0, silences = 0;
  auto busy = [&] {
    for (int rank : everyone)
      if (!to_start[rank].empty() || !steppers[rank].idle()) return true;
    return false;
  };
  while (busy()) {
    // Damage ends after 20,000 steps. If it went on, it might by chance let
    // some rank make progress again and again, so that no rank would ever time
    // out and the job would not end.
    if (period > 0 && ++steps < 20'000 && random() % period == 0)
      scribbler.Scribble();
    const int rank = static_cast<int>(random() % ranks);
    const bool moved =
        (random() % 2 == 0 && start_one(rank)) || steppers[rank].Step();
    quiet = moved ? 0 : quiet + 1;
    if (quiet < 100) continue;
    // All ranks wait for something that never comes, so let their timeouts
    // pass.
    quiet = 0;
    now += std::chrono::seconds(100);
    for (SteppedRank& stepper : steppers) stepper.CheckPeers(now);
    ASSERT_LT(++silences, 10 * ranks) << "a hang";
  }

  size_t finished = 0;
  for (const SteppedRank& stepper : steppers) {
    for (const Finished& end : stepper.finished()) {
      ++finished;
      ++outcomes->calls[end.status.code()];
      EXPECT_EQ(end.status.ok(), end.status.message().empty());
    }
  }
  EXPECT_EQ(finished, submitted);
  for (const SoakCall& call : calls) {
    EXPECT_TRUE(call.GuardsIntact()) << call.Text();
    if (period == 0) outcomes->wrong += call.CountWrong();
  }
}

TEST(PoolFuzzTest, EveryCallEnds) {
  const uint64_t seed = FuzzSeed();
  Outcomes outcomes;
  const Clock::time_point start = Clock::now();
  // The test continues until calls have ended with each of these codes, or
  // until 600 worlds have run. Four seconds may be too short for this: calls
  // time out in only a few worlds, and with a slow sanitizer only a few worlds
  // run in four seconds.
  constexpr Code kExpected[] = {Code::kOk, Code::kDataLoss,
                                Code::kDeadlineExceeded, Code::kMismatch};
  auto all_seen = [&] {
    return std::ranges::all_of(
        kExpected, [&](Code code) { return outcomes.calls.contains(code); });
  };
  while (Clock::now() - start < std::chrono::seconds(4) ||
         outcomes.worlds < 60 || (!all_seen() && outcomes.worlds < 600)) {
    std::seed_seq mixed{seed, outcomes.worlds};
    Random random(mixed);
    constexpr uint64_t kPeriods[] = {0, 3, 30, 300};
    const uint64_t period = kPeriods[outcomes.worlds % 4];
    SCOPED_TRACE("world " + std::to_string(outcomes.worlds));
    RunWorld(random, period, &outcomes);
    if (HasFailure()) return;
  }
  std::cout << outcomes.worlds << " worlds";
  for (const auto& [code, calls] : outcomes.calls)
    std::cout << ", " << CodeName(code) << " " << calls;
  std::cout << std::endl;
  EXPECT_EQ(outcomes.wrong, 0u);
  for (Code code : kExpected)
    EXPECT_GT(outcomes.calls[code], 0u) << CodeName(code);
}

}  // namespace
}  // namespace jax_cxl::comm
