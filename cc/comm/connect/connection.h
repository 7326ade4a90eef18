#ifndef JAX_CXL_COMM_CONNECT_CONNECTION_H_
#define JAX_CXL_COMM_CONNECT_CONNECTION_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "cc/base/status.h"
#include "cc/comm/call/call.h"
#include "cc/comm/call/options.h"
#include "cc/comm/connect/arena.h"
#include "cc/comm/connect/directory.h"
#include "cc/comm/health/peers.h"
#include "cc/comm/record/recorder.h"
#include "cc/engine/cpu/executor.h"
#include "cc/plan/plan.h"
#include "cc/pool/coherence/doorbell.h"
#include "cc/pool/layout/channel_layout.h"
#include "cc/pool/pool.h"

namespace jax_cxl::comm {

// The memory of one channel as one member sees it. Allocates this member's
// part, publishes its place, and finds the parts of the other members.
//
// Not thread-safe.
class Connection {
 public:
  Connection(pool::Pool* pool, const Peers* peers, const Options& options,
             Group group);

  // Allocates this member's part. Fails with kResourceExhausted.
  Status Open(Arena* arena, Recorder* recorder);

  // Looks for the members that are not found yet. Returns true when all are
  // found. Errors: kMismatch (a member has other slots), kDataLoss (a place
  // outside the pool).
  Result<bool> Connect();

  // Returns the members that are not found yet.
  std::vector<int> Missing() const;

  // The same on all members, and different for any two channels.
  uint64_t key() const { return key_; }
  const Group& group() const { return group_; }
  const plan::Geometry& geometry() const { return geometry_; }
  const pool::Doorbells& doorbells() const { return doorbells_; }
  uint64_t payload_bytes() const { return payload_bytes_; }

  // Valid once connected:
  const std::vector<pool::ControlBlock*>& blocks() const { return blocks_; }
  cpu::Rings* rings() const { return rings_.get(); }

 private:
  pool::Pool* pool_;
  const Peers* peers_;
  Group group_;
  uint64_t key_;
  pool::Doorbells doorbells_;
  plan::Geometry geometry_;
  uint64_t payload_bytes_;
  uint64_t control_bytes_;

  pool::ChannelPlace place_ = {};  // of this member's part
  std::vector<std::optional<ChannelMemory>> found_;
  std::vector<pool::ControlBlock*> blocks_;
  std::unique_ptr<cpu::Rings> rings_;
};

}  // namespace jax_cxl::comm

#endif  // JAX_CXL_COMM_CONNECT_CONNECTION_H_
