#ifndef JAX_CXL_COMM_CONNECT_DIRECTORY_H_
#define JAX_CXL_COMM_CONNECT_DIRECTORY_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "cc/base/status.h"
#include "cc/comm/call/call.h"
#include "cc/comm/connect/arena.h"
#include "cc/plan/plan.h"
#include "cc/pool/coherence/doorbell.h"
#include "cc/pool/layout/channel_layout.h"
#include "cc/pool/pool.h"

namespace jax_cxl::comm {

// Allocates a member's part of a channel, clears it, and returns its place.
// Fails with kResourceExhausted, and then allocates nothing.
Result<pool::ChannelPlace> AllocateChannel(const pool::Pool& pool, Arena* arena,
                                           const Group& group, uint64_t key,
                                           const plan::Geometry& geometry,
                                           uint64_t control_bytes);

// Returns to the arena what AllocateChannel allocated.
void FreeChannel(const pool::Pool& pool, Arena* arena, int rank,
                 const pool::ChannelPlace& place, uint64_t control_bytes);

// A rank's directory of its channels, in its page of the pool. The functions
// are thread-safe.

// Writes `place` to an entry of the directory of `rank`, a rank of this
// process, and opens the entry. Returns its index. Fails with
// kResourceExhausted.
Result<int> EnterChannel(pool::Pool* pool, const pool::Doorbells& doorbells,
                         int rank, const pool::ChannelPlace& place);

// Closes an entry. Other members then look for another place of its group.
void CloseChannel(pool::Pool* pool, const pool::Doorbells& doorbells, int rank,
                  int index);

// An open entry of a directory.
struct FoundChannel {
  const uint64_t* entry;  // its version
  uint64_t version;
  pool::ChannelPlace place;  // not checked
};

// Returns the entry of `group` in the directory of `rank`, or nothing if that
// rank currently has no memory for the channel.
std::optional<FoundChannel> FindChannel(const pool::Pool& pool,
                                        const pool::Doorbells& doorbells,
                                        int rank, uint64_t group);

// The addresses of a channel's place in this process.
struct ChannelMemory {
  std::byte* control = nullptr;
  std::array<std::byte*, pool::kMaxSlots> slots = {};
};

// Checks a place that a rank has published, and returns its addresses. `name`
// is the name of that rank for messages. The slots and payloads must have the
// sizes and numbers in `expected`. The control block takes `control_bytes`.
// Errors: kMismatch (other slots), kDataLoss (a place outside the pool).
Result<ChannelMemory> LocateChannel(const pool::Pool& pool,
                                    const pool::ChannelPlace& place,
                                    const pool::ChannelPlace& expected,
                                    uint64_t control_bytes,
                                    std::string_view name);

// The last known memory of one member of a group. Since then, the member may
// have given this memory to another group.
struct MemberBlock {
  pool::ControlBlock* control = nullptr;  // null: not found yet
  pool::Doorbells doorbells;              // for the words of the block
  // The member's directory entry that names this memory, and the version that
  // the entry had when it was read. Null for this rank itself.
  const uint64_t* entry = nullptr;
  uint64_t version = 0;
  std::array<std::byte*, pool::kMaxSlots> slots = {};

  // Returns true once the group no longer has this memory. A member rings its
  // directory entry before it writes words of another group. So after the
  // caller has read a word of another group, this returns true.
  bool Moved() const {
    return entry != nullptr && doorbells.From(0).Read(entry) != version;
  }
};

}  // namespace jax_cxl::comm

#endif  // JAX_CXL_COMM_CONNECT_DIRECTORY_H_
