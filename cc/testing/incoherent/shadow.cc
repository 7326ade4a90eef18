#include "cc/testing/incoherent/shadow.h"

#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <utility>

// The exchange of lines races with the process's stores by design, as in a real
// cache. Words are loaded and stored atomically, which is enough on x86.
#define JAX_CXL_NOT_SANITIZED __attribute__((no_sanitize("thread")))

namespace jax_cxl::pool {
namespace {

constexpr uint64_t kWords = Shadow::kLine / sizeof(uint64_t);

uint64_t* WordsAt(std::byte* memory, uint64_t offset) {
  return reinterpret_cast<uint64_t*>(memory + offset);
}

// Returns random bits that decide how a line is torn: in which order its words
// move, and whether the exchange is delayed half-way.
uint64_t NextTear() {
  static std::atomic<uint64_t> count{0};
  return count.fetch_add(1, std::memory_order_relaxed) * 0x9e3779b97f4a7c15u >>
         32;
}

// Returns the index, in its line, of the word that moves as number `k`. `tear`
// chooses one of 32 orders of the words.
uint64_t TornWord(uint64_t k, uint64_t tear) {
  return (k * (2 * tear + 1) + tear / 4) % kWords;
}

// In a range of more bytes than this, no line is delayed while it moves.
constexpr uint64_t kLongRange = 1024;

void HoldUp(uint64_t tear) {
  if (tear / 64 % 8 == 0) std::this_thread::yield();
  if (tear / 64 % 256 == 0)
    std::this_thread::sleep_for(std::chrono::microseconds(20));
}

std::byte* MapPrivate(uint64_t bytes) {
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return memory == MAP_FAILED ? nullptr : static_cast<std::byte*>(memory);
}

}  // namespace

Result<std::unique_ptr<Shadow>> Shadow::Create(std::byte* shared,
                                               uint64_t bytes,
                                               std::vector<ByteRange> extents,
                                               int world_size) {
  std::byte* base = MapPrivate(bytes);
  std::byte* exchanged = base == nullptr ? nullptr : MapPrivate(bytes);
  if (exchanged == nullptr) {
    if (base != nullptr) munmap(base, bytes);
    return Error(Code::kResourceExhausted, "no memory for the shadow of a ",
                 FormatBytes(bytes), " pool; use a smaller size=");
  }
  return std::unique_ptr<Shadow>(new Shadow(shared, bytes, std::move(extents),
                                            world_size, base, exchanged));
}

Shadow::Shadow(std::byte* shared, uint64_t bytes,
               std::vector<ByteRange> extents, int world_size, std::byte* base,
               std::byte* exchanged)
    : shared_(shared),
      bytes_(bytes),
      base_(base),
      exchanged_(exchanged),
      regions_(base, std::move(extents), world_size),
      claimed_(world_size),
      written_by_device_(static_cast<std::atomic<uint64_t>*>(
          std::calloc(bytes / kLine + 1, sizeof(std::atomic<uint64_t>)))) {
  if (written_by_device_ == nullptr) std::abort();
  // At the start every line is in the cache, with the oldest contents that it
  // can have. Blocks of zeros are not copied: the private copies are already
  // zero there, and cost no memory until they are written.
  for (uint64_t at = 0; at < bytes_; at += kBlock) {
    const uint64_t length = std::min(kBlock, bytes_ - at);
    const std::byte* block = shared_ + at;
    if (block[0] == std::byte{0} &&
        std::memcmp(block, block + 1, length - 1) == 0)
      continue;
    Refresh(at, length);
  }
}

Shadow::~Shadow() {
  munmap(base_, bytes_);
  munmap(exchanged_, bytes_);
}

template <typename Move>
void Shadow::ForLines(uint64_t offset, uint64_t bytes, const Move& move) {
  if (bytes == 0) return;
  const uint64_t end = std::min(bytes_, offset + bytes);
  for (uint64_t line = RoundDown(offset, kLine); line < end;) {
    const uint64_t block_end = std::min(end, RoundDown(line, kBlock) + kBlock);
    std::lock_guard lock(locks_[line / kBlock % locks_.size()]);
    // Delay only lines of short ranges, which hold polled words and
    // descriptors.
    for (; line < block_end; line += kLine)
      move(line, NextTear() | (bytes > kLongRange ? 64 : 0));
  }
}

void Shadow::WriteBack(uint64_t offset, uint64_t bytes) {
  ForLines(offset, bytes, [this](uint64_t line, uint64_t tear) {
    if (IsDirty(line)) WriteBackLine(line, tear);
  });
}

JAX_CXL_NOT_SANITIZED void Shadow::DeviceWrite(uint64_t offset,
                                               const std::byte* from,
                                               uint64_t bytes) {
  if (bytes == 0) return;
  const uint64_t number = ++device_writes_;
  for (uint64_t line = offset / kLine; line <= (offset + bytes - 1) / kLine;
       ++line)
    written_by_device_[line] = number;
  // Stores whole words, because the exchange of a line moves whole words too.
  for (uint64_t at = offset; at < offset + bytes;) {
    const uint64_t word = RoundDown(at, sizeof(uint64_t));
    const uint64_t end = std::min(offset + bytes, word + sizeof(uint64_t));
    uint64_t* mine = WordsAt(base_, word);
    uint64_t before = __atomic_load_n(mine, __ATOMIC_ACQUIRE), after;
    do {
      after = before;
      std::memcpy(reinterpret_cast<std::byte*>(&after) + (at - word),
                  from + (at - offset), end - at);
    } while (!__atomic_compare_exchange_n(mine, &before, after, false,
                                          __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE));
    at = end;
  }
}

JAX_CXL_NOT_SANITIZED void Shadow::DeviceRead(uint64_t offset, std::byte* to,
                                              uint64_t bytes) const {
  for (uint64_t at = offset; at < offset + bytes;) {
    const uint64_t word = RoundDown(at, sizeof(uint64_t));
    const uint64_t end = std::min(offset + bytes, word + sizeof(uint64_t));
    const uint64_t value =
        __atomic_load_n(WordsAt(base_, word), __ATOMIC_ACQUIRE);
    std::memcpy(to + (at - offset),
                reinterpret_cast<const std::byte*>(&value) + (at - word),
                end - at);
    at = end;
  }
}

uint64_t Shadow::LastDeviceWrite(uint64_t offset, uint64_t bytes) const {
  uint64_t last = 0;
  for (uint64_t line = offset / kLine; line <= (offset + bytes - 1) / kLine;
       ++line)
    last = std::max(last, written_by_device_[line].load());
  return last;
}

void Shadow::Drop(uint64_t offset, uint64_t bytes) {
  ForLines(offset, bytes, [this](uint64_t line, uint64_t tear) {
    if (IsDirty(line)) {
      // A dirty line of a slot is an error. A dirty line with a flag is not:
      // one thread of the owner may poll the flag while another thread stores
      // to the line.
      if (regions_.Find(line, kLine) == Region::kSlot)
        Breach(line, "is invalidated before it was written back");
      WriteBackLine(line, tear);
    }
    PullLine(line, tear);
  });
}

void Shadow::Refresh(uint64_t offset, uint64_t bytes) {
  ForLines(offset, bytes, [this](uint64_t line, uint64_t tear) {
    if (!IsDirty(line)) PullLine(line, tear);
  });
}

JAX_CXL_NOT_SANITIZED bool Shadow::IsDirty(uint64_t line) const {
  const uint64_t* mine = WordsAt(base_, line);
  const uint64_t* exchanged = WordsAt(exchanged_, line);
  for (uint64_t i = 0; i < kWords; ++i)
    if (__atomic_load_n(&mine[i], __ATOMIC_ACQUIRE) != exchanged[i])
      return true;
  return false;
}

JAX_CXL_NOT_SANITIZED void Shadow::WriteBackLine(uint64_t line, uint64_t tear) {
  if (sealed_) {
    const int owner = regions_.OwnerOf(line);
    if (owner >= 0 && regions_.Find(line, kLine) == Region::kRankInfo)
      claimed_[owner] = true;  // the writer of its RankInfo owns a rank
    if (owner < 0 || !claimed_[owner])
      Breach(line, "has stores of a host that it does not belong to");
  }
  const uint64_t* mine = WordsAt(base_, line);
  uint64_t* exchanged = WordsAt(exchanged_, line);
  uint64_t* shared = WordsAt(shared_, line);
  for (uint64_t k = 0; k < kWords; ++k) {
    const uint64_t i = TornWord(k, tear);
    if (k == kWords / 2) HoldUp(tear);
    if (__atomic_load_n(&shared[i], __ATOMIC_ACQUIRE) != exchanged[i])
      Breach(line, "was written by two hosts: one undoes the other's stores");
    const uint64_t word = __atomic_load_n(&mine[i], __ATOMIC_ACQUIRE);
    __atomic_store_n(&shared[i], word, __ATOMIC_RELEASE);
    exchanged[i] = word;
  }
}

JAX_CXL_NOT_SANITIZED void Shadow::PullLine(uint64_t line, uint64_t tear) {
  uint64_t* mine = WordsAt(base_, line);
  uint64_t* exchanged = WordsAt(exchanged_, line);
  const uint64_t* shared = WordsAt(shared_, line);
  for (uint64_t k = 0; k < kWords; ++k) {
    const uint64_t i = TornWord(k, tear);
    if (k == kWords / 2) HoldUp(tear);
    const uint64_t word = __atomic_load_n(&shared[i], __ATOMIC_ACQUIRE);
    if (word == exchanged[i]) continue;  // leaves a racing store alone
    uint64_t expected = exchanged[i];
    if (!__atomic_compare_exchange_n(&mine[i], &expected, word, false,
                                     __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
      Breach(line, "was written by two hosts: one undoes the other's stores");
    exchanged[i] = word;
  }
}

void Shadow::Breach(uint64_t offset, const std::string& what) const {
  const int owner = regions_.OwnerOf(offset);
  const std::string whose =
      owner < 0 ? "the pool's" : "rank " + std::to_string(owner) + "'s";
  std::fprintf(stderr,
               "jax_cxl: protocol error on the incoherent pool: the line at "
               "offset %llu (%s, %s) %s\n",
               static_cast<unsigned long long>(offset), whose.c_str(),
               std::string(RegionName(regions_.Find(offset, kLine))).c_str(),
               what.c_str());
  std::abort();
}

}  // namespace jax_cxl::pool
