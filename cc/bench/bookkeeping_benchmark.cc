// Measures what a call costs in addition to moving its data, in nanoseconds:
//
//   times     reading the timestamp counter at the beginning and at the end of
//             the call
//   recorder  Record, Start and Finish of the flight recorder, by the coherence
//             mode of the pool
//   checks    making the descriptor of the call, and comparing it with the
//             descriptors of all other ranks
//
// Prints the median, the minimum and the maximum of several rounds.
//
// bookkeeping_benchmark [rounds, default 15]

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "cc/base/ticks.h"
#include "cc/comm/call/call.h"
#include "cc/comm/record/recorder.h"
#include "cc/pool/pool.h"
#include "cc/testing/world/world.h"

namespace jax_cxl::comm {
namespace {

constexpr int kCalls = 200'000;  // 48 times around the ring

Call OneCall() {
  Call call;
  call.request.op = plan::Op::kAllReduce;
  call.request.num_ranks = 2;
  call.request.count = 2;
  call.dtype = DType::kFloat32;
  call.name = "psum";
  call.submitted = Ticks();
  return call;
}

template <typename OneMore>
void Time(const std::string& what, int rounds, const OneMore& one_more) {
  std::vector<double> nanoseconds;
  for (int round = 0; round <= rounds; ++round) {
    const auto start = Clock::now();
    for (int i = 0; i < kCalls; ++i) one_more(i);
    const std::chrono::duration<double, std::nano> took = Clock::now() - start;
    if (round > 0)
      nanoseconds.push_back(took.count() / kCalls);  // the first round warms up
  }
  std::sort(nanoseconds.begin(), nanoseconds.end());
  std::printf("%-20s %8.1f %8.1f %8.1f\n", what.c_str(),
              nanoseconds[nanoseconds.size() / 2], nanoseconds.front(),
              nanoseconds.back());
}

void TimeRecorder(pool::CoherenceMode mode, int rounds) {
  if (!pool::CheckCoherenceSupported(mode).ok()) return;
  pool::PoolSpec spec;
  spec.paths = {"recorder." + std::to_string(getpid())};
  spec.coherence = mode;
  const auto pool = OrDie(pool::Pool::Create(spec, 1));
  Recorder recorder(pool.get(), 0);
  Call call = OneCall();
  Time("recorder, " + std::string(pool::CoherenceModeName(mode)), rounds,
       [&](int i) {
         call.identity = i;
         recorder.Record(&call, 1);
         recorder.Start(call.number, call.submitted);
         recorder.Finish(call.number, OkStatus(), call.submitted);
       });
}

void TimeTimes(int rounds) {
  Call call = OneCall();
  uint64_t busy = 0;
  Time("times", rounds, [&](int) {
    call.submitted = Ticks();
    asm volatile("" : : "r"(&call) : "memory");
    busy += Ticks() - call.submitted;
  });
  asm volatile("" : : "r"(busy));
}

void TimeChecks(int ranks, int rounds) {
  const Call call = OneCall();
  std::vector<pool::CallDescriptor> others(ranks - 1, Describe(call));
  Time("checks, " + std::to_string(ranks) + " ranks", rounds, [&](int) {
    // Makes the compiler assume that `call` and `others` have changed, so that
    // it does not move the work out of the loop.
    asm volatile("" : : "r"(&call), "r"(others.data()) : "memory");
    const pool::CallDescriptor mine = Describe(call);
    for (const pool::CallDescriptor& other : others)
      if (other != mine) std::abort();
  });
}

}  // namespace
}  // namespace jax_cxl::comm

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 15;
  if (rounds < 1) {
    std::fprintf(stderr, "usage: %s [rounds]\n", argv[0]);
    return 2;
  }
  std::printf("# ns a call            median    least     most\n");
  using jax_cxl::pool::CoherenceMode;
  jax_cxl::comm::TimeTimes(rounds);
  for (auto mode : {CoherenceMode::kCoherent, CoherenceMode::kUncached,
                    CoherenceMode::kFlush})
    jax_cxl::comm::TimeRecorder(mode, rounds);
  for (int ranks : {2, 8}) jax_cxl::comm::TimeChecks(ranks, rounds);
}
