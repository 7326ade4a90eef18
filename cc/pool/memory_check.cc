#include "cc/pool/memory_check.h"

#if defined(__x86_64__)
#include <emmintrin.h>
#endif

#include <algorithm>
#include <chrono>
#include <cstring>
#include <vector>

#include "cc/pool/coherence/coherence.h"
#include "cc/pool/layout/layout.h"

namespace jax_cxl::pool {
namespace {

using Clock = std::chrono::steady_clock;

constexpr uint64_t kMostBytes = uint64_t{64} << 20;
constexpr int kSamples = 1001;
// The largest number of check words. The two doorbells of PassDoorbell follow
// them.
constexpr uint64_t kCheckWords = 64;

double Nanoseconds(Clock::duration duration) {
  return std::chrono::duration<double, std::nano>(duration).count();
}

double Median(std::vector<double> samples) {
  const auto middle = samples.begin() + samples.size() / 2;
  std::nth_element(samples.begin(), middle, samples.end());
  return *middle;
}

std::byte* ArenaOf(const Pool& pool) {
  const Pool::Range arena = pool.arena(0, 0);
  return pool.At(arena.offset, arena.bytes);
}

// Runs `body`, which moves `bytes` bytes, and returns the bandwidth in GB/s.
// That is the same as bytes per nanosecond.
template <typename Body>
double Bandwidth(uint64_t bytes, const Body& body) {
  const auto began = Clock::now();
  body();
  return static_cast<double>(bytes) / Nanoseconds(Clock::now() - began);
}

uint64_t Sum(const std::byte* begin, uint64_t bytes) {
  uint64_t sums[4] = {};
  const auto* words = reinterpret_cast<const Word*>(begin);
  for (uint64_t i = 0; i + 4 <= bytes / 8; i += 4)
    for (int j = 0; j < 4; ++j) sums[j] += words[i + j];
  return sums[0] + sums[1] + sums[2] + sums[3];
}

double NonTemporalStores([[maybe_unused]] std::byte* begin,
                         [[maybe_unused]] uint64_t bytes) {
#if defined(__x86_64__)
  return Bandwidth(bytes, [&] {
    for (uint64_t at = 0; at < bytes; at += 8)
      _mm_stream_si64(reinterpret_cast<long long*>(begin + at),
                      static_cast<long long>(at));
    _mm_sfence();
  });
#else
  return 0;
#endif
}

}  // namespace

Result<std::map<std::string, double>> MeasureMemory(const Pool& pool) {
  CXL_RETURN_IF_ERROR(CheckCoherenceSupported(CoherenceMode::kFlush));
  const Coherence flush(CoherenceMode::kFlush);
  std::byte* begin = ArenaOf(pool);
  std::map<std::string, double> speed;
  const uint64_t bytes =
      std::min(kMostBytes, pool.arena(0, 0).bytes) / kPageBytes * kPageBytes;
  speed["bytes"] = static_cast<double>(bytes);
  std::memset(begin, 1, bytes);  // The first access maps the pages.
  flush.PublishPayload(begin, bytes);

  std::vector<double> loads, stores;
  const uint64_t stride =
      bytes / kSamples / kInterferenceBytes * kInterferenceBytes;
  for (int i = 0; i < kSamples; ++i) {
    auto* word = reinterpret_cast<uint64_t*>(begin + i * stride);
    flush.AcquirePayload(word, sizeof(*word));
    auto began = Clock::now();
    [[maybe_unused]] volatile uint64_t value =
        __atomic_load_n(word, __ATOMIC_SEQ_CST);
    loads.push_back(Nanoseconds(Clock::now() - began));
    began = Clock::now();
    flush.StoreFlag(word, i);
    stores.push_back(Nanoseconds(Clock::now() - began));
  }
  speed["load_ns"] = Median(std::move(loads));
  speed["store_ns"] = Median(std::move(stores));

  flush.AcquirePayload(begin, bytes);
  [[maybe_unused]] volatile uint64_t sum = 0;
  speed["load_gbs"] = Bandwidth(bytes, [&] { sum = Sum(begin, bytes); });
  speed["store_gbs"] = Bandwidth(bytes, [&] {
    std::memset(begin, 2, bytes);
    flush.PublishPayload(begin, bytes);
  });
  // These bytes fit into a cache. So the stores stay there, and only the
  // write-backs are measured.
  const uint64_t cached = std::min<uint64_t>(bytes, 256 << 10);
  std::memset(begin, 3, cached);
  speed["write_back_gbs"] =
      Bandwidth(cached, [&] { flush.PublishPayload(begin, cached); });
  speed["non_temporal_store_gbs"] = NonTemporalStores(begin, bytes);
  return speed;
}

uint64_t CheckWords(const Pool& pool) {
  return std::min(kCheckWords, pool.arena(0, 0).bytes / kInterferenceBytes - 2);
}

static uint64_t* CheckWord(const Pool& pool, uint64_t index) {
  return reinterpret_cast<uint64_t*>(ArenaOf(pool) +
                                     index * kInterferenceBytes);
}

void StoreCheckWord(const Pool& pool, uint64_t index, uint64_t value,
                    bool write_back) {
  uint64_t* word = CheckWord(pool, index);
  __atomic_store_n(word, value, __ATOMIC_SEQ_CST);
  if (write_back)
    Coherence(CoherenceMode::kFlush).PublishPayload(word, sizeof(*word));
}

uint64_t LoadCheckWord(const Pool& pool, uint64_t index, bool drop) {
  const uint64_t* word = CheckWord(pool, index);
  return drop ? Coherence(CoherenceMode::kFlush).LoadFlag(word)
              : __atomic_load_n(word, __ATOMIC_SEQ_CST);
}

Result<double> PassDoorbell(const Pool& pool, bool first, int rounds,
                            double timeout_s) {
  const Coherence flush(CoherenceMode::kFlush);
  uint64_t* mine = CheckWord(pool, kCheckWords + (first ? 0 : 1));
  const uint64_t* theirs = CheckWord(pool, kCheckWords + (first ? 1 : 0));
  std::vector<double> trips;
  for (uint64_t round = 1; round <= static_cast<uint64_t>(rounds); ++round) {
    const auto began = Clock::now();
    if (first) flush.StoreFlag(mine, round);
    while (flush.LoadFlag(theirs) < round) {
      if (Nanoseconds(Clock::now() - began) > 1e9 * timeout_s)
        return Error(
            Code::kDeadlineExceeded,
            "the other host has not answered a write to the memory in ",
            timeout_s,
            " s; check that the command still runs there, and that both hosts "
            "name the same memory");
    }
    if (!first) flush.StoreFlag(mine, round);
    trips.push_back(Nanoseconds(Clock::now() - began));
  }
  return Median(std::move(trips));
}

}  // namespace jax_cxl::pool
