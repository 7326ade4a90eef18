#ifndef JAX_CXL_GPU_RELAY_FLAGGED_RELAY_H_
#define JAX_CXL_GPU_RELAY_FLAGGED_RELAY_H_

#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "cc/engine/gpu_plan/channel_words.h"
#include "cc/gpu/relay/relay_plan.h"
#include "cc/pool/coherence/coherence.h"
#include "cc/pool/coherence/doorbell.h"

namespace jax_cxl::comm {

// The host's view of the rings for short messages
// (cc/engine/gpu_plan/flagged_ring.h) of a channel's members.
class FlaggedRings {
 public:
  // `rings` has an element per member, with slots of `slot_bytes`.
  FlaggedRings(const pool::Doorbells& doorbells,
               std::vector<cuda::FlaggedControl*> rings, int self,
               uint64_t slot_bytes = plan::kFlaggedBytes)
      : doorbells_(doorbells),
        rings_(std::move(rings)),
        self_(self),
        vectors_bytes_(cuda::FlaggedRingBytes(slot_bytes)) {}

  cuda::FlaggedControl& ring(int member) const { return *rings_[member]; }
  int num_members() const { return static_cast<int>(rings_.size()); }
  int self() const { return self_; }
  const pool::Doorbells& doorbells() const { return doorbells_; }

  // Drops all lines of the peers' rings from this host's cache. Call it when
  // the peers have cleared their rings. Otherwise a line of an earlier channel
  // in the same memory, or of earlier flags, may look like new data.
  void DropPeers() const;

  // Call it instead of executing round `round`, whose flag would be 0. Waits
  // until all peers have read this member's ring, clears the ring, and waits
  // until the peers have cleared their rings. This member's device must have
  // ended its calls. While this function waits, it calls `go_on`, and returns
  // false once `go_on` returns false.
  bool BeginAnew(uint64_t round, const std::function<bool()>& go_on) const;

 private:
  const pool::Doorbells doorbells_;
  const std::vector<cuda::FlaggedControl*> rings_;
  const int self_;
  const uint64_t vectors_bytes_;
};

// The host's work in short calls, whose data carry flags, in a pool without
// coherence. The device writes the data and words of its ring into the pool,
// and polls the data and words of the peers there. No doorbell passes through a
// host:
//
//   device writes data with flags -> its host, which sees the flags too, writes
//   the lines back
//   device polls the lines of a peer -> once the peer has begun the call, the
//   host drops these lines, again and again, until the device has read them
//
// Flags show which data are new, so the result does not depend on when the host
// does this. If the host writes a line back late, or drops it late, the data of
// the line only arrive later.
//
// Not thread-safe.
class FlaggedRelay {
 public:
  FlaggedRelay(bool write_back, FlaggedRings rings)
      : write_back_(write_back), rings_(std::move(rings)) {}

  // Begins a call, which takes round `round` of the rings for short messages.
  void Begin(const RelayPlan& plan, uint64_t round);

  // Does as much as possible without waiting. Returns true once the device has
  // ended the call and everything that it wrote is in the pool.
  bool Advance();

 private:
  // Another member whose data the device polls in this call.
  struct Polled {
    int member = 0;
    std::vector<pool::Part> lines;  // of its data
  };

  void AddLines(const RelayPlan::Step& step, int member,
                std::vector<pool::Part>* lines) const;
  bool WrittenHasArrived();
  void Drop();

  const bool write_back_;
  const FlaggedRings rings_;

  // The state of the current call.
  uint64_t round_ = 0;
  std::vector<pool::Part> to_write_back_;
  std::vector<pool::Part> written_;  // which of these the cache may lack
  std::vector<Polled> not_begun_;    // members that have not begun the call
  std::vector<pool::Part> to_drop_;
};

}  // namespace jax_cxl::comm

#endif  // JAX_CXL_GPU_RELAY_FLAGGED_RELAY_H_
