#ifndef JAX_CXL_TESTING_INCOHERENT_HANDOVER_H_
#define JAX_CXL_TESTING_INCOHERENT_HANDOVER_H_

#include <time.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "cc/engine/gpu_plan/channel_words.h"
#include "cc/pool/coherence/doorbell.h"
#include "cc/pool/layout/channel_layout.h"
#include "cc/pool/pool.h"

// Tests the promises of Coherence between two hosts. Rank 0 of `a` passes
// payloads to rank 1 of `b`, in every kind of place that the protocol uses.
namespace jax_cxl::pool {

class HandOver {
 public:
  HandOver(Pool* a, Pool* b)
      : a_(a),
        b_(b),
        to_(a->coherence(), a->epoch()),
        from_(b->coherence(), b->epoch()) {
    for (int rank : {0, 1}) {
      Pool* pool = rank == 0 ? a_ : b_;
      RankPage* page = pool->rank_page(rank);
      page->info.process.pid = 1 + rank;  // makes the rank one of this host
      pool->coherence().PublishPayload(&page->info, sizeof(page->info));
    }
    // The first directory entry is a channel with one slot. The emulated cache
    // finds out from the entries of the directory what kind of data each word
    // in the pool is.
    ChannelEntry& entry = a_->rank_page(0)->channels[0];
    entry.place.control = a_->arena(0, 0).offset;
    entry.place.slot_bytes = kSlotBytes;
    entry.place.payload_bytes = kPayloadBytes;
    entry.place.num_slots = 1;
    entry.place.slots[0] = entry.place.control + kMiB / 2;
    a_->coherence().PublishPayload(&entry.place, sizeof(entry.place));
    to_.Ring(&entry.version, 1);
    // The second entry is a channel between devices.
    ChannelEntry& devices = a_->rank_page(0)->channels[1];
    devices.place.control = a_->arena(0, 0).offset + kMiB;
    a_->coherence().PublishPayload(&devices.place, sizeof(devices.place));
    to_.Ring(&devices.version, 1);
    for (ChannelEntry* seen :
         {&b_->rank_page(0)->channels[0], &b_->rank_page(0)->channels[1]})
      b_->coherence().AcquirePayload(seen, sizeof(*seen));
  }

  // Returns the first problem, or "" if there is none.
  std::string Run(uint64_t rounds) {
    for (uint64_t round = 1; round <= rounds; ++round) {
      for (const Place& place : Places()) {
        std::string wrong = OneAfterTheOther(place, 2 * round);
        if (!wrong.empty()) return place.name + ": " + wrong;
      }
    }
    uint64_t next = 2 * rounds + 1;  // acknowledged values only grow
    for (const Place& place : Places()) {
      std::string wrong = AtOnce(place, next, rounds);
      next += rounds;
      if (!wrong.empty()) return place.name + ", both at once: " + wrong;
    }
    return "";
  }

 private:
  static constexpr uint64_t kMiB = uint64_t{1} << 20;
  static constexpr uint32_t kSlotBytes = 8192;
  static constexpr uint16_t kPayloadBytes = 1024;

  // A place in the pool for a flag and its payload. `flag` and `payload` are
  // offsets.
  struct Place {
    std::string name;
    uint64_t flag;
    uint64_t payload = 0;
    uint64_t bytes = 0;
    bool in_line = false;  // the payload is in the flag's cache line
  };

  std::vector<Place> Places() const {
    const ChannelPlace& channel = a_->rank_page(0)->channels[0].place;
    const uint64_t devices = a_->rank_page(0)->channels[1].place.control;
    const auto page = kPageBytes;
    const uint64_t entry =
        page + offsetof(RankPage, channels) + 2 * sizeof(ChannelEntry);
    const uint64_t abort = page + offsetof(RankPage, abort);
    const uint64_t name = channel.control + offsetof(ControlBlock, names);
    const uint64_t announcement =
        channel.control + offsetof(ControlBlock, announcements);
    const uint64_t submission = channel.control + sizeof(ControlBlock);
    const uint64_t reads =
        submission + kCallRing * SubmissionStride(kPayloadBytes);
    return {
        {"rank info", page, page + 8, sizeof(RankInfo) - 8},
        {"heartbeat", page + offsetof(RankPage, heartbeat)},
        {"abort", abort, abort + 8, sizeof(RankAbort) - 8},
        {"directory", entry, entry + 8, sizeof(ChannelPlace)},
        {"slot", channel.control + offsetof(ControlBlock, published),
         channel.slots[0], kSlotBytes},
        {"released", channel.control + offsetof(ControlBlock, released)},
        {"finished", channel.control + offsetof(ControlBlock, finished)},
        {"announcement", announcement, announcement + 8, 56, true},
        {"submissions read", reads},
        {"submission", submission, submission + 8, 56, true},
        {"submission beyond its line", submission, submission + 64,
         kPayloadBytes - 64},
        {"name", name, name + 8, sizeof(CallName) - 8},
        // This word of a SendLine is not in the cache line of the doorbell.
        {"call word", devices + offsetof(cuda::SendLine, calls[9])},
        {"ended", devices + offsetof(cuda::DeviceControl, ended)},
    };
  }

  static std::span<uint64_t> Words(Pool* pool, const Place& place) {
    return {reinterpret_cast<uint64_t*>(pool->base() + place.payload),
            place.bytes / sizeof(uint64_t)};
  }
  static uint64_t* Flag(Pool* pool, const Place& place) {
    return reinterpret_cast<uint64_t*>(pool->base() + place.flag);
  }

  void Send(const Place& place, uint64_t round) {
    uint64_t word = round << 32;
    for (uint64_t& to : Words(a_, place)) to = word++;
    if (place.in_line) return to_.RingLine(Flag(a_, place), round);
    if (place.bytes > 0)
      a_->coherence().PublishPayload(a_->base() + place.payload, place.bytes);
    to_.Ring(Flag(a_, place), round);
  }

  // Receives the payload of a round, whose flag the reader has seen. Returns
  // the problem, or "" if there is none.
  std::string Receive(const Place& place, uint64_t round) {
    if (place.bytes > 0)
      b_->coherence().AcquirePayload(b_->base() + place.payload, place.bytes);
    uint64_t word = round << 32;
    for (uint64_t seen : Words(b_, place)) {
      if (seen != word++)
        return "a word of round " + std::to_string(round) + " is of round " +
               std::to_string(seen >> 32);
    }
    return "";
  }

  // Checks that a LoadFlag right after a StoreFlag sees the stored value.
  std::string OneAfterTheOther(const Place& place, uint64_t round) {
    Send(place, round);
    const uint64_t seen = from_.Read(Flag(b_, place));
    if (seen != round)
      return "the flag is " + std::to_string(seen) + ", not " +
             std::to_string(round);
    return Receive(place, round);
  }

  std::string AtOnce(const Place& place, uint64_t first, uint64_t rounds) {
    const Place ack = {
        "", kPageBytes + kRankPageBytes + offsetof(RankPage, heartbeat)};
    std::string wrong;
    std::atomic<bool> over{false};
    std::thread sender([&] {
      for (uint64_t round = first; round < first + rounds; ++round) {
        Send(place, round);
        auto taken = [&] { return over || to_.Read(Flag(a_, ack)) >= round; };
        if (!Wait(taken) || over) return;
      }
    });
    for (uint64_t round = first; wrong.empty() && round < first + rounds;
         ++round) {
      auto sent = [&] { return from_.Read(Flag(b_, place)) >= round; };
      wrong = Wait(sent) ? Receive(place, round) : "the flag is never seen";
      if (wrong.empty()) from_.Ring(Flag(b_, ack), round);
    }
    over = true;
    sender.join();
    return wrong;
  }

  // Waits until `ready` returns true, for at most a second of this thread's
  // processor time. On a busy machine both threads may wait long for a core,
  // and that time does not count.
  static bool Wait(const std::function<bool()>& ready) {
    const double end = OwnSeconds() + 1;
    while (!ready()) {
      if (OwnSeconds() > end) return false;
      std::this_thread::yield();
    }
    return true;
  }

  // Returns the processor time of this thread.
  static double OwnSeconds() {
    timespec time;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) + 1e-9 * time.tv_nsec;
  }

  Pool* a_;
  Pool* b_;
  Doorbells to_;    // rank 0's view of the pool
  Doorbells from_;  // rank 1's view of the pool
};

}  // namespace jax_cxl::pool

#endif  // JAX_CXL_TESTING_INCOHERENT_HANDOVER_H_
