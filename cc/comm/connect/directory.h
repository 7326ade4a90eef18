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

// Allocates the part of a channel that belongs to member `group.self`: a
// control block of `control_bytes` bytes, and slots of `geometry`. Clears the
// control block, and returns the place of the part. If the arena is full, fails
// with kResourceExhausted and allocates nothing.
Result<pool::ChannelPlace> AllocateChannel(const pool::Pool& pool, Arena* arena,
                                           const Group& group, uint64_t key,
                                           const plan::Geometry& geometry,
                                           uint64_t control_bytes);

// Gives the memory of `place` back to the arena, from which AllocateChannel
// took it. `rank` is the rank to which the memory belongs.
void FreeChannel(const pool::Pool& pool, Arena* arena, int rank,
                 const pool::ChannelPlace& place, uint64_t control_bytes);

// A rank's directory of its channels, in its page of the pool. The functions
// are thread-safe.

// Writes `place`, this rank's part of the channel of `group`, to a closed entry
// of its directory, and opens the entry. Notes the members of the group in the
// rank's flight recorder. Returns the entry's index. Fails with
// kResourceExhausted if all entries are open.
Result<int> EnterChannel(pool::Pool* pool, const pool::Doorbells& doorbells,
                         const Group& group, const pool::ChannelPlace& place);

// Closes entry `index` of the directory of `rank`. The other members of the
// entry's group then look for another entry of the group.
void CloseChannel(pool::Pool* pool, const pool::Doorbells& doorbells, int rank,
                  int index);

// A rank's part of a channel, as this process has mapped it.
struct FoundChannel {
  const uint64_t* entry;  // the version of its entry in the rank's directory
  uint64_t version;
  uint64_t first;  // ChannelPlace::first
  std::byte* control = nullptr;
  std::array<std::byte*, pool::kMaxSlots> slots = {};
};

// Returns the part of `rank` in the channel of `mine`, which is the part of
// this rank, or nothing if that rank currently has no memory for the channel.
// Checks what the rank has published: its slots and payloads must have the
// sizes and numbers in `mine`, and its control block takes `control_bytes`.
// `name` is the name of the rank for error messages. Errors: kMismatch (other
// slots), kDataLoss (a place outside the pool).
Result<std::optional<FoundChannel>> FindChannel(
    const pool::Pool& pool, const pool::Doorbells& doorbells, int rank,
    const pool::ChannelPlace& mine, uint64_t control_bytes,
    std::string_view name);

// The last known memory of one member of a group. Since then, the member may
// have given this memory to another group.
struct MemberBlock {
  pool::ControlBlock* control = nullptr;  // null: not found yet
  pool::Doorbells doorbells;              // for the words of the block
  // In its directory, the member has an entry for this memory. `entry` points
  // to the version of that entry, and `version` is the value that was read
  // there. `entry` is null for this rank itself.
  const uint64_t* entry = nullptr;
  uint64_t version = 0;
  std::array<std::byte*, pool::kMaxSlots> slots = {};

  // Returns true once the group no longer has this memory. A member changes the
  // version of its directory entry before it writes words of another group to
  // this memory. So if the caller has read such a word, Moved returns true.
  bool Moved() const {
    return entry != nullptr && doorbells.From(0).Read(entry) != version;
  }
};

}  // namespace jax_cxl::comm

#endif  // JAX_CXL_COMM_CONNECT_DIRECTORY_H_
