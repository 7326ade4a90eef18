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

// Allocates a member's part of a channel, clears it, and returns its place.
// Fails with kResourceExhausted.
Result<pool::ChannelPlace> AllocateChannel(const pool::Pool& pool, Arena* arena,
                                           const Group& group, uint64_t key,
                                           const plan::Geometry& geometry,
                                           uint64_t control_bytes);

// A rank's directory of its channels, in its page of the pool. The functions
// are thread-safe.

// Appends `place` to the directory of `rank`, a rank of this process. Returns
// the index of the entry. Fails with kResourceExhausted.
Result<int> EnterChannel(pool::Pool* pool, const pool::Doorbells& doorbells,
                         int rank, const pool::ChannelPlace& place);

// Returns the entry of `group` in the directory of `rank`, or nothing if that
// rank has not opened the channel yet. The entry is not checked.
std::optional<pool::ChannelPlace> FindChannel(const pool::Pool& pool,
                                              const pool::Doorbells& doorbells,
                                              int rank, uint64_t group);

// The addresses of a channel's place in this process.
struct ChannelMemory {
  std::byte* control = nullptr;
  std::array<std::byte*, pool::kMaxSlots> slots = {};
};

// Checks a place that the rank called `name` has published, and returns its
// addresses. Slots and payloads must be like those of `expected`; the control
// block takes `control_bytes`. Errors: kMismatch (other slots), kDataLoss (a
// place outside the pool).
Result<ChannelMemory> LocateChannel(const pool::Pool& pool,
                                    const pool::ChannelPlace& place,
                                    const pool::ChannelPlace& expected,
                                    uint64_t control_bytes,
                                    std::string_view name);

}  // namespace jax_cxl::comm

#endif  // JAX_CXL_COMM_CONNECT_DIRECTORY_H_
