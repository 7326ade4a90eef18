// Measures the speed of the CPU engine's reduction kernels with one thread, and
// of memcpy: kernels_benchmark [KiB per source, default 1024].

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <vector>

#include "cc/engine/kernels/kernels.h"
#include "cc/testing/reference/reduce_reference.h"

namespace {

using Clock = std::chrono::steady_clock;

// Returns the seconds of one call of `call` in the fastest of several rounds.
// The fastest one counts, because other processes can only slow a round down.
double SecondsPerCall(const std::function<void()>& call) {
  double best = 1e9;
  int calls = 1;
  for (int round = 0; round < 9;) {
    const auto start = Clock::now();
    for (int i = 0; i < calls; ++i) call();
    const double seconds =
        std::chrono::duration<double>(Clock::now() - start).count();
    if (seconds < 2e-3) {
      calls *= 2;
      continue;
    }
    best = std::min(best, seconds / calls);
    ++round;
  }
  return best;
}

}  // namespace

int main(int argc, char** argv) {
  const size_t kib = argc > 1 ? std::strtoul(argv[1], nullptr, 10) : 1024;
  const size_t bytes = kib * 1024;
  if (bytes == 0) {
    std::fprintf(stderr, "usage: %s [KiB per source]\n", argv[0]);
    return 1;
  }
  constexpr int kMaxSources = 8;
  std::vector<std::vector<std::byte>> buffers(kMaxSources + 1);
  std::vector<const std::byte*> sources;
  for (auto& buffer : buffers) buffer.assign(bytes, std::byte{0x3c});
  for (int s = 0; s < kMaxSources; ++s) sources.push_back(buffers[s].data());
  std::byte* destination = buffers[kMaxSources].data();

  // The rates count bytes read and bytes written. So the columns, one for each
  // number of sources, can be compared with each other and with memcpy, which
  // reads and writes every byte once.
  std::printf("# GB/s of bytes read + written; %zu KiB per source\n", kib);
  const double copy =
      SecondsPerCall([&] { std::memcpy(destination, sources[0], bytes); });
  std::printf("memcpy %38.1f\n", 2e-9 * bytes / copy);
  std::printf("%-20s %5s %8s %8s %8s %8s %8s\n", "dtype", "op", "n=2", "n=3",
              "n=4", "n=5", "n=8");
  using jax_cxl::DType;
  using jax_cxl::ReduceOp;
  for (int d = 0; d < jax_cxl::kNumDTypes; ++d) {
    for (ReduceOp op : {ReduceOp::kSum, ReduceOp::kProd, ReduceOp::kMax}) {
      const auto dtype = static_cast<DType>(d);
      if (!jax_cxl::cpu::reference::CanReduce(dtype, op)) continue;
      const auto name = jax_cxl::DTypeName(dtype);
      const auto op_name = jax_cxl::ReduceOpName(op);
      std::printf("%-20.*s %5.*s", static_cast<int>(name.size()), name.data(),
                  static_cast<int>(op_name.size()), op_name.data());
      for (size_t n : {2, 3, 4, 5, 8}) {
        const double seconds = SecondsPerCall([&] {
          jax_cxl::cpu::Reduce(dtype, op, {sources.data(), n}, destination,
                               bytes / jax_cxl::DTypeBytes(dtype));
        });
        std::printf(" %8.1f", 1e-9 * (n + 1) * bytes / seconds);
        std::fflush(stdout);
      }
      std::printf("\n");
    }
  }
  return 0;
}
