#ifndef JAX_CXL_ENGINE_GPU_PLAN_CHANNEL_WORDS_H_
#define JAX_CXL_ENGINE_GPU_PLAN_CHANNEL_WORDS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "cc/plan/gpu_geometry.h"
#include "cc/pool/layout/channel_layout.h"
#include "cc/pool/layout/layout.h"

// The words and slots of a channel between GPUs.
namespace jax_cxl::cuda {

inline constexpr int kMaxBlocks = 64;   // thread blocks of one call
inline constexpr int kMaxMembers = 64;  // ranks of a group
inline constexpr int kCallWords = 15;
static_assert(kCallWords > pool::kMaxSlots);

// The words by which block b of a member tells block b of the other members
// what it has published. `published` counts rounds, and `calls` names the calls
// to which they belong. A member can be ahead of its peers by at most as many
// calls as there are slots, which are fewer than kCallWords. So no word of
// `calls` is overwritten while a peer needs it.
struct alignas(pool::kInterferenceBytes) SendLine {
  uint64_t published;          // a doorbell word
  uint64_t calls[kCallWords];  // CallWord of call c at c % kCallWords
};
static_assert(sizeof(SendLine) == pool::kInterferenceBytes);

// A word that members compare: the number of a call or round, and a hash of
// everything else that the members must agree on. The number takes the upper
// bits, where a doorbell has its epoch. The hash takes the lower bits, where a
// doorbell has its value.
using pool::kValueBits;
using pool::kValueMask;
constexpr uint64_t CallWord(uint64_t number, uint64_t hash) {
  return number << kValueBits | (hash & kValueMask);
}

// Returns a 48-bit hash of a call and all calls before it.
constexpr uint64_t ChainHash(uint64_t before, uint64_t descriptor_hash) {
  uint64_t hash = (before ^ descriptor_hash) * 0x9e3779b97f4a7c15;
  hash ^= hash >> 29;
  return hash & kValueMask;
}

// A record of a call that a member's host has enqueued. The last kJournal
// records stay readable, so that an error message can describe the calls of two
// members that differ.
inline constexpr uint64_t kJournal = 256;
struct alignas(pool::kInterferenceBytes) JournalEntry {
  uint64_t ready;  // a doorbell word: number of the call + 1
  pool::CallDescriptor descriptor;
  uint32_t site;  // number of the rank's pool::SiteRecord; 0: unknown
  char name[64];  // the user's function; zero-terminated
};
static_assert(sizeof(JournalEntry) == pool::kInterferenceBytes);

// A member's ring for short messages (see flagged.h). The slots lie one after
// another in `vectors`. If slots hold more than kFlaggedBytes of data, the ring
// goes on in the memory behind this struct.
inline constexpr int kFlaggedSlots = plan::kFlaggedSlots;
struct alignas(pool::kInterferenceBytes) FlaggedControl {
  uint64_t released;              // a doorbell word: rounds
  uint64_t calls[kFlaggedSlots];  // CallWord of round r at r % kFlaggedSlots
  alignas(pool::kInterferenceBytes) std::byte
      vectors[kFlaggedSlots][plan::kFlaggedExpansion * plan::kFlaggedBytes];
};

// Words by which a host takes its member's memory back from the group
// (cc/comm/connect/taking_back.h). Each word has a line of its own, because the
// hosts of all members read `taking` before each call.
struct HostWords {
  pool::Doorbell wanted;    // number of calls that the host has enqueued, or
                            // is about to enqueue
  pool::Doorbell finished;  // number of calls that the host knows have ended
  pool::Doorbell taking;    // odd while the host tries to take the memory
};

// A member's control block on a channel between GPUs.
struct DeviceControl {
  SendLine send[kMaxBlocks];
  pool::Doorbell released[kMaxBlocks];
  // The number of rounds of all finished calls. Every block has released these
  // rounds.
  pool::Doorbell ended;
  JournalEntry journal[kJournal];
  HostWords host;
  FlaggedControl flagged;  // the last: its size varies
};

// Returns the size of all slots of a ring for short messages. `slot_bytes` is
// the number of data bytes that a slot holds.
constexpr uint64_t FlaggedRingBytes(uint64_t slot_bytes) {
  return kFlaggedSlots * plan::kFlaggedExpansion * slot_bytes;
}
constexpr uint64_t DeviceControlBytes(uint64_t flagged_slot_bytes) {
  return offsetof(DeviceControl, flagged.vectors) +
         FlaggedRingBytes(std::max(flagged_slot_bytes, plan::kFlaggedBytes));
}

// The addresses of one member's part of a channel, for the devices of this
// process.
struct MemberView {
  SendLine* send;
  pool::Doorbell* released;
  uint64_t* ended;
  FlaggedControl* flagged;
  std::byte* slots[pool::kMaxSlots];
};

// A copy of one member's words, for a pool without coherence. It is in memory
// that a device and its host keep coherent. Devices wait for these words and
// ring them, instead of the words in the pool. A host thread relays values
// between the two (cc/gpu/relay/channel_relay.h). The device writes the words
// of its own member, and the host writes those of all other members.
struct MirrorWords {
  SendLine send[kMaxBlocks];
  pool::Doorbell released[kMaxBlocks];
  pool::Doorbell ended;
};

// Returns the addresses that a device uses for a member: the words are those of
// `mirror`, but the slots and the ring for short messages are in the pool.
inline MemberView Mirrored(const MemberView& in_pool, MirrorWords* mirror) {
  MemberView view = in_pool;
  view.send = mirror->send;
  view.released = mirror->released;
  view.ended = &mirror->ended.word;
  return view;
}

}  // namespace jax_cxl::cuda

#endif  // JAX_CXL_ENGINE_GPU_PLAN_CHANNEL_WORDS_H_
