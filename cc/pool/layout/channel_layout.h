#ifndef JAX_CXL_POOL_LAYOUT_CHANNEL_LAYOUT_H_
#define JAX_CXL_POOL_LAYOUT_CHANNEL_LAYOUT_H_

#include <cstddef>
#include <cstdint>

#include "cc/pool/layout/layout.h"

// A channel is the memory through which one group of ranks communicates. Each
// member owns the following in its arena, and writes nothing else:
//
//   ControlBlock
//   submissions   a ring of kCallRing entries, SubmissionStride bytes apart
//   Doorbell      submissions_read[group size], one for each member's ring:
//                 how many of that member's submissions this member has read
//   slots         at the places that ChannelEntry names
//
// A member may use its memory for another group once every other member has
// finished all calls that this member has finished. The words `finished` of the
// other members show this. A control block is only ever reused as a control
// block. In the next group, all words of the control block continue from
// ChannelPlace::first, which exceeds each of their old values by more than the
// size of a ring. So if a member of the old group still polls the memory, it
// never finds the submission or announcement that it waits for.
namespace jax_cxl::pool {

// The number of entries in a member's ring of submissions. While some peer has
// yet to read that many of the submissions, further ones wait in the memory of
// the member's process.
inline constexpr uint64_t kCallRing = 64;

// How many different names of calls a member can publish. Calls with any
// further name are published without a name.
inline constexpr uint32_t kCallNames = 128;

// Describes a collective call. If the descriptors of two ranks differed, the
// ranks would misread each other's data. So they compare descriptors before
// they read any data.
struct CallDescriptor {
  uint8_t op = 0;         // plan::Op
  uint8_t reduce_op = 0;  // ReduceOp
  uint8_t dtype = 0;      // DType
  uint8_t flags = 0;      // of the following
  int32_t root = 0;
  uint64_t count = 0;    // of elements in one block
  uint64_t details = 0;  // hash of the operation's other arguments

  static constexpr uint8_t kReverse = 1;   // scan, exscan
  static constexpr uint8_t kInLevels = 2;  // a part of a call in levels

  bool operator==(const CallDescriptor&) const = default;
};
static_assert(sizeof(CallDescriptor) == 24);

// A call that a rank has started. If the call is eager, its payload of
// `payload_bytes` bytes follows this struct in memory. The struct and the first
// kLinePayloadBytes bytes of the payload share one 64-byte cache line.
struct Submission {
  uint64_t ready;     // a doorbell word: index of the submission + 1
  uint64_t identity;  // the same on all ranks for one call
  CallDescriptor descriptor;
  uint32_t name;  // index in the member's `names` + 1; 0: no name
  uint32_t payload_bytes;

  std::byte* payload() { return reinterpret_cast<std::byte*>(this + 1); }
  const std::byte* payload() const {
    return reinterpret_cast<const std::byte*>(this + 1);
  }
};
static_assert(sizeof(Submission) == 48);
inline constexpr uint64_t kLinePayloadBytes = 64 - sizeof(Submission);

// The name of a call, such as "psum", and its place in the user's program. They
// are written once, and read only for messages. Both texts are zero-terminated.
struct alignas(kInterferenceBytes) CallName {
  uint64_t ready;  // a doorbell word: 1 once the rest is written
  char name[64];   // "psum"
  char site[184];  // "train.py:33 (step)"
};
static_assert(sizeof(CallName) == 2 * kInterferenceBytes);

// One entry in the order in which a group executes its calls. Only the first
// member writes announcements.
struct alignas(kInterferenceBytes) Announcement {
  uint64_t ready;     // a doorbell word: index of the announcement + 1
  uint64_t identity;  // the call that every member executes next
};
static_assert(sizeof(Announcement) == kInterferenceBytes);

struct ControlBlock {
  Doorbell published;  // rounds whose slot this member has filled
  Doorbell released;   // rounds that this member will not read again
  Doorbell finished;   // calls that this member has finished
  CallName names[kCallNames];
  Announcement announcements[kCallRing];  // first member only
};
static_assert(sizeof(ControlBlock) % kInterferenceBytes == 0);

inline constexpr uint64_t SubmissionStride(uint64_t payload_bytes) {
  return (sizeof(Submission) + payload_bytes + kInterferenceBytes - 1) /
         kInterferenceBytes * kInterferenceBytes;
}

// Returns the size of a member's control block, its submissions and its
// `submissions_read`. `payload_bytes` is the largest payload of a submission.
// Memory that is large enough for a group of all ranks can be reused for every
// group of a job.
inline constexpr uint64_t ControlBytes(int group_size, uint64_t payload_bytes) {
  return sizeof(ControlBlock) + group_size * sizeof(Doorbell) +
         kCallRing * SubmissionStride(payload_bytes);
}

inline Submission* SubmissionAt(ControlBlock* block, uint64_t payload_bytes,
                                uint64_t index) {
  return reinterpret_cast<Submission*>(reinterpret_cast<std::byte*>(block + 1) +
                                       index % kCallRing *
                                           SubmissionStride(payload_bytes));
}

// Returns the doorbells that count how many submissions of each member the
// owner of `block` has read.
inline Doorbell* SubmissionsRead(ControlBlock* block, uint64_t payload_bytes) {
  return reinterpret_cast<Doorbell*>(reinterpret_cast<std::byte*>(block + 1) +
                                     kCallRing *
                                         SubmissionStride(payload_bytes));
}

}  // namespace jax_cxl::pool

#endif  // JAX_CXL_POOL_LAYOUT_CHANNEL_LAYOUT_H_
