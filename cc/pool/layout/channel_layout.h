#ifndef JAX_CXL_POOL_LAYOUT_CHANNEL_LAYOUT_H_
#define JAX_CXL_POOL_LAYOUT_CHANNEL_LAYOUT_H_

#include <cstddef>
#include <cstdint>

#include "cc/pool/layout/layout.h"

// A channel is what one group of ranks communicates through. Each member owns
// the following in its arena, and writes nothing else:
//
//   ControlBlock
//   Doorbell      submissions_read[group size]   by this member, of each
//   other's submissions   a ring of kCallRing, SubmissionStride bytes apart
//   slots         wherever ChannelEntry says
namespace jax_cxl::pool {

// How many calls a member may have submitted that some peer has not taken note
// of. More wait in the process's memory.
inline constexpr uint64_t kCallRing = 64;

// How many calls, as their user wrote them, a member can name. Further ones
// have no name.
inline constexpr uint32_t kCallNames = 128;

// What a collective call is. Ranks whose descriptors differ would misread each
// other's data, so descriptors are compared before any data is read.
struct CallDescriptor {
  uint8_t op = 0;         // plan::Op
  uint8_t reduce_op = 0;  // ReduceOp
  uint8_t dtype = 0;      // DType
  uint8_t reverse = 0;    // scan, exscan
  int32_t root = 0;
  uint64_t count = 0;    // elements of one block
  uint64_t details = 0;  // hash of what else the operation is given

  bool operator==(const CallDescriptor&) const = default;
};
static_assert(sizeof(CallDescriptor) == 24);

// One call that its rank has started, and, of a small one, what the rank has
// to say in it: `payload_bytes` follow the struct. Together with the first
// kLinePayloadBytes of them it is one 64-byte line, which moves as one.
struct Submission {
  uint64_t ready;     // a doorbell word: index of the submission + 1
  uint64_t identity;  // equal on all ranks for the same call
  CallDescriptor descriptor;
  uint32_t name;  // which of its member's names, from 1; 0 is none
  uint32_t payload_bytes;

  std::byte* payload() { return reinterpret_cast<std::byte*>(this + 1); }
  const std::byte* payload() const {
    return reinterpret_cast<const std::byte*>(this + 1);
  }
};
static_assert(sizeof(Submission) == 48);
inline constexpr uint64_t kLinePayloadBytes = 64 - sizeof(Submission);

// How a member names a call to its user. Written once, and read only for
// messages. Texts are zero-terminated.
struct alignas(kLineBytes) CallName {
  uint64_t ready;  // a doorbell word: 1 once the rest is written
  char name[64];   // "psum"
  char site[184];  // "train.py:33 (step)"
};
static_assert(sizeof(CallName) == 2 * kLineBytes);

// One entry of the group's order of calls.
struct alignas(kLineBytes) Announcement {
  uint64_t ready;     // a doorbell word: index of the announcement + 1
  uint64_t identity;  // the call that every member executes next
};
static_assert(sizeof(Announcement) == kLineBytes);

struct ControlBlock {
  Doorbell published;  // rounds whose slot this member has filled
  Doorbell released;   // rounds of which this member will read nothing more
  CallName names[kCallNames];
  Announcement announcements[kCallRing];  // first member only
};
static_assert(sizeof(ControlBlock) % kLineBytes == 0);

inline constexpr uint64_t SubmissionStride(uint64_t payload_bytes) {
  return (sizeof(Submission) + payload_bytes + kLineBytes - 1) / kLineBytes *
         kLineBytes;
}

// `payload_bytes` is what a submission can carry at most.
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

// What the owner of `block` has read of each member's submissions.
inline Doorbell* SubmissionsRead(ControlBlock* block, uint64_t payload_bytes) {
  return reinterpret_cast<Doorbell*>(reinterpret_cast<std::byte*>(block + 1) +
                                     kCallRing *
                                         SubmissionStride(payload_bytes));
}

}  // namespace jax_cxl::pool

#endif  // JAX_CXL_POOL_LAYOUT_CHANNEL_LAYOUT_H_
