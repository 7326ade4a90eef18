#ifndef JAX_CXL_POOL_CHANNEL_LAYOUT_H_
#define JAX_CXL_POOL_CHANNEL_LAYOUT_H_

#include <cstddef>
#include <cstdint>

#include "cc/pool/layout.h"

// A channel is what one group of ranks communicates through. Each member owns
// one control block and a ring of slots in its arena, and writes nothing else:
//
//   ControlBlock
//   Doorbell      submissions_read[group size]   first member only
//   slots         wherever ChannelEntry says
namespace jax_cxl::pool {

// How many calls of a group may be submitted and not yet executed. More wait
// in the process's memory.
inline constexpr uint64_t kCallRing = 64;

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

// One call that its rank has started.
struct alignas(kLineBytes) Submission {
  uint64_t ready;     // a doorbell word: index of the submission + 1
  uint64_t identity;  // equal on all ranks for the same call
  CallDescriptor descriptor;
  char name[64];  // what the user wrote, zero-terminated
};
static_assert(sizeof(Submission) == kLineBytes);

// One entry of the group's order of calls.
struct alignas(kLineBytes) Announcement {
  uint64_t ready;     // a doorbell word: index of the announcement + 1
  uint64_t identity;  // the call that every member executes next
  uint32_t code;      // jax_cxl::Code: not kOk ends the group with `message`
  char message[484];  // zero-terminated
};
static_assert(sizeof(Announcement) == 4 * kLineBytes);

struct ControlBlock {
  Doorbell published;  // rounds whose slot this member has filled
  Doorbell released;   // rounds of which this member will read nothing more
  Submission submissions[kCallRing];
  Announcement announcements[kCallRing];  // first member only
};
static_assert(sizeof(ControlBlock) % kLineBytes == 0);

inline constexpr uint64_t ControlBytes(int group_size) {
  return sizeof(ControlBlock) + group_size * sizeof(Doorbell);
}

inline Doorbell* SubmissionsRead(ControlBlock* block) {
  return reinterpret_cast<Doorbell*>(block + 1);
}

}  // namespace jax_cxl::pool

#endif  // JAX_CXL_POOL_CHANNEL_LAYOUT_H_
