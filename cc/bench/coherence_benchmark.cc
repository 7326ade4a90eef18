// Measures what each coherence mode costs on this machine's memory, and prints
// it as JSON: coherence_benchmark [--repeats=N]. The instructions are those
// that a CXL pool needs, but the memory is local, so the times are not those of
// CXL.

#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cc/pool/coherence/cache.h"
#include "cc/pool/coherence/coherence.h"
#include "cc/pool/layout/layout.h"

namespace {

using namespace jax_cxl::pool;
using Clock = std::chrono::steady_clock;

constexpr size_t kBytes[] = {64, 4096, 65536, 1 << 20};

struct Shared {
  Doorbell there;
  Doorbell back;
  alignas(kPageBytes) std::byte payload[1 << 20];
};

double Microseconds(Clock::time_point start) {
  return std::chrono::duration<double, std::micro>(Clock::now() - start)
      .count();
}

// Calls `call` `count` times. Returns the average time in microseconds.
double TimeEach(int count, const std::function<void(int)>& call) {
  const Clock::time_point start = Clock::now();
  for (int i = 0; i < count; ++i) call(i);
  return Microseconds(start) / count;
}

// Sends `bytes` of payload and a flag to another thread, which reads the
// payload and answers with a flag. Returns the microseconds until the answer
// arrives, averaged over `count` times.
double RoundTrip(const Coherence& coherence, Shared* shared, size_t bytes,
                 int count, uint64_t* round) {
  std::vector<std::byte> mine(bytes), theirs(bytes);
  const uint64_t first = *round + 1;
  *round += count;
  std::thread other([&, last = *round] {
    for (uint64_t r = first; r <= last; ++r) {
      while (coherence.LoadFlag(&shared->there.word) < r) {
      }
      coherence.AcquirePayload(shared->payload, bytes);
      std::memcpy(theirs.data(), shared->payload, bytes);
      coherence.StoreFlag(&shared->back.word, r);
    }
  });
  const double each = TimeEach(count, [&](int i) {
    const uint64_t r = first + i;
    std::memcpy(shared->payload, mine.data(), bytes);
    coherence.PublishPayload(shared->payload, bytes);
    coherence.StoreFlag(&shared->there.word, r);
    while (coherence.LoadFlag(&shared->back.word) < r) {
    }
  });
  other.join();
  return each;
}

using Samples = std::map<std::pair<std::string, size_t>, std::vector<double>>;

void Measure(const Coherence& coherence, Shared* shared, uint64_t* round,
             Samples* samples) {
  auto add = [&](const char* what, size_t bytes, double microseconds) {
    (*samples)[{what, bytes}].push_back(microseconds);
  };
  add("store flag", 8, TimeEach(1000, [&](int) {
        coherence.StoreFlag(&shared->there.word, *round);
      }));
  add("load flag", 8,
      TimeEach(1000, [&](int) { coherence.LoadFlag(&shared->back.word); }));
  std::vector<std::byte> private_copy(sizeof(shared->payload));
  for (size_t bytes : kBytes) {
    const int count = static_cast<int>(std::max<size_t>(8, 65536 / bytes));
    add("write and publish", bytes, TimeEach(count, [&](int) {
          std::memcpy(shared->payload, private_copy.data(), bytes);
          coherence.PublishPayload(shared->payload, bytes);
        }));
    add("acquire and read", bytes, TimeEach(count, [&](int) {
          coherence.AcquirePayload(shared->payload, bytes);
          std::memcpy(private_copy.data(), shared->payload, bytes);
        }));
    add("round trip", bytes,
        RoundTrip(coherence, shared, bytes, std::min(count, 200), round));
  }
}

}  // namespace

int main(int argc, char** argv) {
  int repeats = 21;
  for (int i = 1; i < argc; ++i) {
    if (std::strncmp(argv[i], "--repeats=", 10) != 0) {
      std::fprintf(stderr, "usage: %s [--repeats=N]\n", argv[0]);
      return 2;
    }
    repeats = std::max(1, std::atoi(argv[i] + 10));
  }
  void* memory = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE,
                      MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  if (memory == MAP_FAILED) return 1;
  auto* shared = static_cast<Shared*>(memory);
  const CoherenceMode modes[] = {CoherenceMode::kCoherent,
                                 CoherenceMode::kUncached,
                                 CoherenceMode::kFlush};
  std::map<CoherenceMode, Samples> samples;
  uint64_t round = 0;
  for (int repeat = 0; repeat < repeats; ++repeat) {
    for (CoherenceMode mode : modes) {
      if (!CheckCoherenceSupported(mode).ok()) continue;
      Measure(Coherence(mode), shared, &round, &samples[mode]);
    }
  }
  constexpr const char* kNames[] = {"none", "clflush", "clflushopt", "clwb"};
  std::printf(
      "{\"write_back\": \"%s\", \"invalidate\": \"%s\", \"repeats\": %d, "
      "\"results\": [",
      kNames[static_cast<int>(WriteBackInstruction())],
      kNames[static_cast<int>(InvalidateInstruction())], repeats);
  const char* separator = "";
  for (auto& [mode, of_mode] : samples) {
    for (auto& [what, times] : of_mode) {
      std::sort(times.begin(), times.end());
      std::printf(
          "%s\n  {\"mode\": \"%s\", \"what\": \"%s\", \"bytes\": %zu, "
          "\"time_us\": {\"min\": %.3f, \"median\": %.3f, \"max\": %.3f}}",
          separator, std::string(CoherenceModeName(mode)).c_str(),
          what.first.c_str(), what.second, times.front(),
          times[times.size() / 2], times.back());
      separator = ",";
    }
  }
  std::printf("\n]}\n");
  munmap(memory, sizeof(Shared));
  return 0;
}
