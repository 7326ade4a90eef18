#ifndef JAX_CXL_COMM_CONNECT_MEMBER_BLOCK_H_
#define JAX_CXL_COMM_CONNECT_MEMBER_BLOCK_H_

#include <cstdint>

#include "cc/pool/coherence/doorbell.h"
#include "cc/pool/layout/channel_layout.h"

namespace jax_cxl::comm {

// The last known control block of one member of a group. The member may
// meanwhile have given the memory to another group.
struct MemberBlock {
  pool::ControlBlock* control = nullptr;  // null: not found yet
  pool::Doorbells doorbells;              // for the words of the block
  // The entry of the member's directory that names the memory, and its version
  // then. Null for this rank itself.
  const uint64_t* entry = nullptr;
  uint64_t version = 0;

  // Returns true once the group no longer has this memory. A member rings its
  // entry before it writes for another group. So if a word of the block belongs
  // to another group, this returns true after the word was read.
  bool Moved() const {
    return entry != nullptr && doorbells.From(0).Read(entry) != version;
  }
};

}  // namespace jax_cxl::comm

#endif  // JAX_CXL_COMM_CONNECT_MEMBER_BLOCK_H_
