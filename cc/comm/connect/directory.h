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
#include "cc/pool/pool.h"

namespace jax_cxl::comm {

// Allocates a member's part of a channel, wiped, and says where it is.
// Errors: kResourceExhausted.
Result<pool::ChannelPlace> AllocateChannel(const pool::Pool& pool, Arena* arena,
                                           const Group& group, uint64_t key,
                                           const plan::Geometry& geometry,
                                           uint64_t control_bytes);

// A rank's list of its channels, in its page of the pool. Thread-safe.

// Appends `place` to the directory of `rank`, one of this process's; returns
// the number of the entry.
// Errors: kResourceExhausted.
Result<int> EnterChannel(pool::Pool* pool, const pool::Doorbells& doorbells,
                         int rank, const pool::ChannelPlace& place);

// The entry of `group` in the directory of `rank`; none if it has not opened
// that channel yet. Nothing in the entry has been checked.
std::optional<pool::ChannelPlace> FindChannel(const pool::Pool& pool,
                                              const pool::Doorbells& doorbells,
                                              int rank, uint64_t group);

// Where a channel's place lies in this process.
struct ChannelMemory {
  std::byte* control = nullptr;
  std::array<std::byte*, pool::kMaxSlots> slots = {};
};

// Looks at a place that the rank called `name` gave. `expected` has what its
// slots and payloads must be like; `control_bytes` what its control block
// takes. Errors: kMismatch (other slots), kDataLoss (a place outside the pool).
Result<ChannelMemory> LocateChannel(const pool::Pool& pool,
                                    const pool::ChannelPlace& place,
                                    const pool::ChannelPlace& expected,
                                    uint64_t control_bytes,
                                    std::string_view name);

}  // namespace jax_cxl::comm

#endif  // JAX_CXL_COMM_CONNECT_DIRECTORY_H_
