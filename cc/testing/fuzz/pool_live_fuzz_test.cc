// Ranks run in their own threads, while another process overwrites words of
// their pool at any moment, even after a rank has checked a word and before it
// uses the word. Every call must end, and nothing outside the pool and the
// calls' own buffers may change.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <deque>
#include <iostream>
#include <map>
#include <numeric>
#include <random>
#include <vector>

#include "cc/testing/fuzz/scribbler.h"
#include "cc/testing/pool/random_test_length.h"
#include "cc/testing/soak/soak_call.h"
#include "cc/testing/world/world.h"

namespace jax_cxl::comm {
namespace {

using soak::Random;
using soak::SoakCall;

// A process that damages the pool from time to time, until it is stopped.
class ScribblingProcess {
 public:
  ScribblingProcess(const pool::Pool& pool, uint64_t seed,
                    std::chrono::microseconds pause) {
    pid_ = fork();
    if (pid_ != 0) return;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    Scribbler scribbler(pool, seed);
    for (;;) {
      scribbler.Scribble();
      usleep(pause.count());
    }
  }
  ~ScribblingProcess() {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }

 private:
  pid_t pid_;
};

// Runs up to `batches` batches of calls. Stops after the first batch in which a
// call fails.
Status RunWorld(Random& random, int batches) {
  Options options;
  options.slot_bytes = random() % 2 == 0 ? 1024 : 16384;
  options.num_slots = 2 + static_cast<int>(random() % 4);
  options.warn_after_s = 1e9;
  options.timeout_s = 0.2;
  World world(3, options, 16 << 20);
  const Fence fence(world.pool());
  // Pauses in microseconds. With the longest pause few calls meet damage, and
  // with the shortest one every call does.
  constexpr int kPauses[] = {1000, 100, 10};
  const ScribblingProcess enemy(
      world.pool(), random(), std::chrono::microseconds(kPauses[random() % 3]));
  std::vector<int32_t> everyone(world.size());
  std::iota(everyone.begin(), everyone.end(), 0);
  Status status;
  uint64_t identity = 0;
  for (int batch = 0; batch < batches && status.ok(); ++batch) {
    std::deque<SoakCall> calls;
    for (int k = 0; k < 20; ++k)
      calls.emplace_back(random, everyone, identity++, 20'000);
    Countdown countdown(world.size() * static_cast<int>(calls.size()));
    for (SoakCall& call : calls)
      for (int rank : everyone)
        countdown.StartCall(world.endpoint(rank), everyone,
                            call.ForMember(rank));
    status = countdown.Wait();
    for (const SoakCall& call : calls)
      EXPECT_TRUE(call.GuardsIntact()) << call.Text();
  }
  return status;
}

TEST(PoolLiveFuzzTest, EveryCallEnds) {
  if (Incoherence::FromEnvironment())
    GTEST_SKIP() << "the other process bypasses the emulated cache";
  const uint64_t seed = FuzzSeed();
  alarm(100 + static_cast<unsigned>(
                  RandomTestSeconds()));  // ends the test if it hangs
  std::map<Code, int> worlds;
  Random random(seed);
  const Clock::time_point start = Clock::now();
  const std::chrono::duration<double> length(RandomTestSeconds());
  while (Clock::now() - start < length && !HasFailure()) {
    const Status status = RunWorld(random, /*batches=*/50);
    EXPECT_EQ(status.ok(), status.message().empty());
    ++worlds[status.code()];
  }
  alarm(0);
  for (const auto& [code, count] : worlds)
    std::cout << CodeName(code) << " " << count << ", ";
  std::cout << "worlds" << std::endl;
  EXPECT_GT(worlds.size(), worlds.count(Code::kOk)) << "no damage was seen";
}

}  // namespace
}  // namespace jax_cxl::comm
