#ifndef JAX_CXL_ENGINE_GPU_PLAN_CHANNEL_WORDS_H_
#define JAX_CXL_ENGINE_GPU_PLAN_CHANNEL_WORDS_H_

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

// What block b of a member says to block b of the others. Which call a round
// belongs to stands beside the doorbell: a member can be ahead by as many calls
// as there are slots, so that no word is overwritten while a peer needs it.
struct alignas(pool::kLineBytes) SendLine {
  uint64_t published;          // a doorbell word
  uint64_t calls[kCallWords];  // of call c at c % kCallWords: CallWord
};
static_assert(sizeof(SendLine) == pool::kLineBytes);

// The number of a call or round, and a hash of what else the members must agree
// on, in one word: as a doorbell has its epoch and its value.
using pool::kValueBits;
using pool::kValueMask;
constexpr uint64_t CallWord(uint64_t number, uint64_t hash) {
  return number << kValueBits | (hash & kValueMask);
}

// What a member's host says about a call that it enqueued: the last kJournal of
// them stay readable, so that a disagreement can be put in words.
inline constexpr uint64_t kJournal = 256;
struct alignas(pool::kLineBytes) JournalEntry {
  uint64_t ready;  // a doorbell word: number of the call + 1
  pool::CallDescriptor descriptor;
  char name[64];  // what the user wrote, zero-terminated
};
static_assert(sizeof(JournalEntry) == pool::kLineBytes);

// A member's ring for short messages (see flagged.h).
inline constexpr int kFlaggedSlots = plan::kFlaggedSlots;
struct alignas(pool::kLineBytes) FlaggedControl {
  uint64_t released;              // a doorbell word: rounds
  uint64_t calls[kFlaggedSlots];  // of round r at r % kFlaggedSlots: CallWord
  alignas(pool::kLineBytes) std::byte
      vectors[kFlaggedSlots][plan::kFlaggedExpansion * plan::kFlaggedBytes];
};

// A member's control block on a channel between GPUs.
struct DeviceControl {
  SendLine send[kMaxBlocks];
  pool::Doorbell released[kMaxBlocks];
  // Rounds of calls that are over, which all blocks have released.
  pool::Doorbell ended;
  JournalEntry journal[kJournal];
  FlaggedControl flagged;
};

// One member's part of a channel as the devices of this process see it.
struct MemberView {
  SendLine* send;
  pool::Doorbell* released;
  uint64_t* ended;
  FlaggedControl* flagged;
  std::byte* slots[pool::kMaxSlots];
};

}  // namespace jax_cxl::cuda

#endif  // JAX_CXL_ENGINE_GPU_PLAN_CHANNEL_WORDS_H_
