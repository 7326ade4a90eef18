#ifndef JAX_CXL_GPU_RELAY_FLAGGED_RINGS_H_
#define JAX_CXL_GPU_RELAY_FLAGGED_RINGS_H_

#include <cstdint>
#include <functional>
#include <vector>

#include "cc/engine/gpu_plan/channel_words.h"
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

}  // namespace jax_cxl::comm

#endif  // JAX_CXL_GPU_RELAY_FLAGGED_RINGS_H_
