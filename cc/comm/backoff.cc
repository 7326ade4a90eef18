#include "cc/comm/backoff.h"

#include <sched.h>

#include <algorithm>
#include <thread>

namespace jax_cxl::comm {
namespace {

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
  if (++polls_ <= kSpins) {
    CpuRelax();
  } else if (polls_ <= kYields) {
    sched_yield();
  } else {
    const auto waited = Clock::now() - started_;
    std::this_thread::sleep_for(std::clamp<Clock::duration>(
        waited / 16, kShortestSleep, kLongestSleep));
  }
}

}  // namespace jax_cxl::comm
