// What the flight recorder costs a call: nanoseconds of Submit + Start +
// Finish, by coherence policy. Median, least and most of several rounds.
//
// recorder_benchmark [rounds, default 15]

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "cc/comm/call.h"
#include "cc/comm/recorder.h"
#include "cc/comm/world_testing.h"
#include "cc/pool/pool.h"

namespace jax_cxl::comm {
namespace {

constexpr int kCalls = 200'000;  // through the whole ring 48 times

void Measure(pool::CoherenceMode mode, int rounds) {
  if (!pool::CheckCoherenceSupported(mode).ok()) return;
  pool::PoolSpec spec;
  spec.paths = {"recorder." + std::to_string(getpid())};
  spec.coherence = mode;
  const auto pool = OrDie(pool::Pool::Create(spec, 1));
  Recorder recorder(pool.get(), 0);
  Call call;
  call.request.op = plan::Op::kAllReduce;
  call.request.num_ranks = 2;
  call.request.count = 2;
  call.dtype = DType::kFloat32;
  call.name = "psum";
  call.submitted = Clock::now();  // which its Endpoint reads in any case
  std::vector<double> nanoseconds;
  for (int round = 0; round <= rounds; ++round) {
    const auto start = Clock::now();
    for (int i = 0; i < kCalls; ++i) {
      call.identity = i;
      recorder.Submit(&call, 1);
      recorder.Start(call.number);
      recorder.Finish(call.number, OkStatus());
    }
    const std::chrono::duration<double, std::nano> took = Clock::now() - start;
    if (round > 0) nanoseconds.push_back(took.count() / kCalls);  // warm by now
  }
  std::sort(nanoseconds.begin(), nanoseconds.end());
  std::printf("%-10s %8.1f %8.1f %8.1f\n",
              std::string(pool::CoherenceModeName(mode)).c_str(),
              nanoseconds[nanoseconds.size() / 2], nanoseconds.front(),
              nanoseconds.back());
}

}  // namespace
}  // namespace jax_cxl::comm

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 15;
  if (rounds < 1) {
    std::fprintf(stderr, "usage: %s [rounds]\n", argv[0]);
    return 2;
  }
  std::printf("# ns a call   median    least     most\n");
  using jax_cxl::pool::CoherenceMode;
  for (auto mode : {CoherenceMode::kCoherent, CoherenceMode::kUncached,
                    CoherenceMode::kFlush})
    jax_cxl::comm::Measure(mode, rounds);
}
