#ifndef JAX_CXL_TESTING_FUZZ_SCRIBBLER_H_
#define JAX_CXL_TESTING_FUZZ_SCRIBBLER_H_

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iostream>
#include <random>
#include <vector>

#include "cc/pool/layout/channel_layout.h"
#include "cc/pool/layout/recorder_layout.h"
#include "cc/pool/pool.h"

// Code that the fuzzers of the running protocol share.
namespace jax_cxl::comm {

// Overwrites words of a rank's memory that other ranks read. A malicious rank,
// or a rank with a bug, might do the same.
class Scribbler {
 public:
  Scribbler(const pool::Pool& pool, uint64_t seed)
      : pool_(pool), random_(seed) {}

  // Damages one random word.
  void Scribble() {
    uint64_t* word = Somewhere();
    __atomic_store_n(word, Something(*word), __ATOMIC_RELAXED);
  }

 private:
  uint64_t Below(uint64_t limit) { return random_() % limit; }

  uint64_t* Somewhere() {
    const int rank = static_cast<int>(Below(pool_.world_size()));
    pool::RankPage* page = pool_.rank_page(rank);
    // A rank has few groups, so only the first few entries are in use.
    pool::ChannelEntry& entry = page->channels[Below(3)];
    switch (Below(9)) {
      case 0:
        return WordOf(&page->info, sizeof(page->info));
      case 1:
        return WordOf(&page->abort, 64);
      case 2:
        return &page->heartbeat.word;
      case 3:
        return WordOf(&entry, sizeof(entry));
      case 4:
        return InPool(entry.place.slots[Below(pool::kMaxSlots)], 1024);
      case 5:
        return WordOf(pool_.recorder(rank), 1024);
      case 6:
        return InPool(entry.place.control, sizeof(pool::ControlBlock));
      default:
        return Rung(entry.place.control, uint64_t{304} << 10);
    }
  }

  uint64_t* WordOf(void* begin, uint64_t bytes) {
    return static_cast<uint64_t*>(begin) + Below(bytes / sizeof(uint64_t));
  }

  // Returns a random word among `bytes` bytes at an offset that comes from a
  // directory entry. Half of the time, the word is among the first 1,024 bytes,
  // which in a control block are the counters and the first entries.
  uint64_t* InPool(uint64_t offset, uint64_t bytes) {
    if (Below(2) == 0) bytes = std::min<uint64_t>(bytes, 1024);
    std::byte* at = pool_.At(offset / 8 * 8, bytes);
    if (at == nullptr) at = pool_.At(pool_.arena(0, 0).offset, bytes);
    return WordOf(at, bytes);
  }

  // Returns a doorbell of this job that has rung, or one of the five words
  // after it. In three of four cases it is one of the last four doorbells,
  // because their submissions or announcements may not have been read yet.
  uint64_t* Rung(uint64_t offset, uint64_t bytes) {
    auto* begin = reinterpret_cast<uint64_t*>(pool_.At(offset / 8 * 8, bytes));
    if (begin == nullptr) return InPool(offset, 1024);
    rung_.clear();
    for (uint64_t i = 0; i + 6 < bytes / 8; i += 16)
      if (begin[i] >> 48 == pool_.epoch()) rung_.push_back(begin + i);
    if (rung_.empty()) return begin;
    if (Below(4) != 0) {
      const auto last = rung_.end() - std::min<uint64_t>(rung_.size(), 4);
      std::nth_element(rung_.begin(), last, rung_.end(),
                       [](uint64_t* a, uint64_t* b) { return *a < *b; });
      rung_.erase(rung_.begin(), last);
    }
    return rung_[Below(rung_.size())] + Below(6);
  }

  uint64_t Something(uint64_t now) {
    constexpr uint64_t kValue = (uint64_t{1} << 48) - 1;
    const uint64_t tag = pool_.epoch() << 48;
    switch (Below(8)) {
      case 0:
        return random_();
      case 1:
        return now ^ (uint64_t{1} << Below(64));
      case 2:
        return tag | (kValue & (now + Below(9) - 4));
      case 3:
        return tag | (Below(2) ? kValue : Below(kValue));
      case 4:
        return Below(300);
      case 5:
        return pool_.total_bytes() - Below(8192);
      case 6:
        return Below(2) ? 0 : UINT64_MAX;
      default:
        return *Somewhere();
    }
  }

  const pool::Pool& pool_;
  std::mt19937_64 random_;
  std::vector<uint64_t*> rung_;  // scratch
};

// Makes the memory just below and above the pool inaccessible, if nothing is
// mapped there. So an access outside of the pool crashes the test.
class Fence {
 public:
  explicit Fence(const pool::Pool& pool) {
    Claim(&below_, pool.base() - kBytes);
    Claim(&above_, pool.base() + pool.total_bytes());
  }
  ~Fence() {
    for (void* part : {below_, above_})
      if (part != MAP_FAILED) munmap(part, kBytes);
  }
  Fence(const Fence&) = delete;
  Fence& operator=(const Fence&) = delete;

 private:
  static constexpr size_t kBytes = 64 << 10;

  static void Claim(void** part, void* at) {
    *part = mmap(at, kBytes, PROT_NONE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
  }

  void* below_ = MAP_FAILED;
  void* above_ = MAP_FAILED;
};

// Returns the seed of --gtest_random_seed, which repeats a run, or a new seed
// if the flag is not set. Prints the seed.
inline uint64_t FuzzSeed() {
  uint64_t seed = GTEST_FLAG_GET(random_seed);
  if (seed == 0) seed = 1 + std::random_device()() % 99999;
  std::cout << "again with --gtest_random_seed=" << seed << std::endl;
  return seed;
}

}  // namespace jax_cxl::comm

#endif  // JAX_CXL_TESTING_FUZZ_SCRIBBLER_H_
