#include "cc/comm/call/backoff.h"

#include <sched.h>

#include <algorithm>
#include <thread>

namespace jax_cxl::comm {
namespace {

constexpr int kSpins = 64;
constexpr int kSpinsOnSharedCore = 4;
// A yield that takes no longer than this was in vain: no other thread ran. Such
// a yield takes about 300 ns. If another thread wants the core, the yield costs
// two context switches.
constexpr std::chrono::nanoseconds kVainYield(1000);
// After this many vain yields in a row, the waiting thread assumes that no
// other thread uses the core.
constexpr int kVainYields = 16;
constexpr std::chrono::microseconds kShortestSleep(20);
constexpr std::chrono::microseconds kLongestSleep(1000);

void CpuRelax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace

void Backoff::Pause() {
  if (polls_ == 0) started_ = Clock::now();
  if (++polls_ <= (shares_core_ ? kSpinsOnSharedCore : kSpins)) {
    CpuRelax();
  } else if (polls_ <= kYields) {
    Yield();
  } else {
    const auto waited = Clock::now() - started_;
    std::this_thread::sleep_for(std::clamp<Clock::duration>(
        waited / 16, kShortestSleep, kLongestSleep));
  }
}

void Backoff::Yield() {
  const Clock::time_point before = Clock::now();
  sched_yield();
  if (Clock::now() - before > kVainYield) {
    shares_core_ = true;
    vain_yields_ = 0;
  } else if (++vain_yields_ == kVainYields) {
    shares_core_ = false;
  }
}

}  // namespace jax_cxl::comm
