#ifndef JAX_CXL_COMM_CONNECT_CONNECTION_H_
#define JAX_CXL_COMM_CONNECT_CONNECTION_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "cc/base/status.h"
#include "cc/comm/call/call.h"
#include "cc/comm/call/tuning.h"
#include "cc/comm/connect/arena.h"
#include "cc/comm/connect/directory.h"
#include "cc/comm/health/peers.h"
#include "cc/engine/cpu/executor.h"
#include "cc/plan/plan.h"
#include "cc/pool/coherence/doorbell.h"
#include "cc/pool/pool.h"

namespace jax_cxl::comm {

// Returns how many bytes a pool like this one needs so that every rank has
// memory for this many channels, and for its exchange (cc/comm/exchange.h).
uint64_t NeededPoolBytes(const pool::Pool& pool, const Options& options,
                         uint64_t channels);

// The memory of one channel as one member sees it. Each member has a part of
// this memory: its control block and its slots. A Connection publishes the
// place of this member's part, and finds the parts of the other members. Each
// member may give its part back and take another one later
// (cc/pool/layout/channel_layout.h).
//
// Not thread-safe.
class Connection {
 public:
  // `salt` distinguishes channels of the same group.
  Connection(pool::Pool* pool, const Peers* peers, const Options& options,
             Group group, uint64_t salt = 0);

  // Allocates memory for this member's part. This memory can later serve any
  // other group of the job. Fails with kResourceExhausted.
  Result<pool::ChannelPlace> Allocate(Arena* arena) const;

  // Makes `place` this member's part. The other members do not know about the
  // part until Publish, so the caller can initialize its words first.
  void Take(const pool::ChannelPlace& place);
  // Publishes the place of this member's part, so that the other members find
  // it. Fails with kResourceExhausted if the rank's directory is full.
  Status Publish();
  // Takes this member's part away from the group, and returns its place for the
  // next group to use. `most` must be at least as large as every word in the
  // part's control block. The words of the next group begin above `most`.
  pool::ChannelPlace Close(uint64_t most);
  bool open() const { return entry_ >= 0; }

  // Looks for the parts of the members that are not found yet. Returns true
  // when all are found. Errors: kMismatch (a member has other slots), kDataLoss
  // (a place outside the pool).
  Result<bool> Connect();
  // Finds the new parts of members whose part has moved. Errors: those of
  // Connect.
  Status FollowMoves();

  std::vector<int> Missing() const;

  // The channel's key: the same on all members, and different for any two
  // channels.
  uint64_t key() const { return key_; }
  const Group& group() const { return group_; }
  const plan::Geometry& geometry() const { return geometry_; }
  const pool::Doorbells& doorbells() const { return doorbells_; }
  uint64_t payload_bytes() const { return payload_bytes_; }
  const std::vector<MemberBlock>& blocks() const { return blocks_; }
  const MemberBlock& own() const { return blocks_[group_.self]; }
  // Null until Connect has returned true.
  cpu::Rings* rings() const { return rings_.get(); }

 private:
  Result<bool> Find(int member);
  cpu::RingView View(int member) const;

  pool::Pool* pool_;
  const Peers* peers_;
  Group group_;
  uint64_t key_;
  pool::Doorbells doorbells_;
  plan::Geometry geometry_;
  uint64_t payload_bytes_;
  uint64_t control_bytes_;

  pool::ChannelPlace place_ = {};  // of this member's part
  int entry_ = -1;                 // of the directory; -1: closed
  std::vector<MemberBlock> blocks_;
  std::unique_ptr<cpu::Rings> rings_;
};

}  // namespace jax_cxl::comm

#endif  // JAX_CXL_COMM_CONNECT_CONNECTION_H_
