#ifndef JAX_CXL_ENGINE_CPU_EXECUTOR_H_
#define JAX_CXL_ENGINE_CPU_EXECUTOR_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "cc/base/dtype.h"
#include "cc/base/status.h"
#include "cc/engine/cpu/member_buffers.h"
#include "cc/engine/cpu/taken_rows.h"
#include "cc/plan/plan.h"
#include "cc/pool/coherence/doorbell.h"
#include "cc/pool/layout/layout.h"

namespace jax_cxl::cpu {

// One member's ring of slots and its two counters, as this process maps them.
struct RingView {
  pool::Doorbells doorbells;  // of the counters
  uint64_t* published = nullptr;
  uint64_t* released = nullptr;
  std::array<std::byte*, pool::kMaxSlots> slots = {};
};

// The rings of a group as its member `rank` sees them. Caches the last known
// values of the peers' counters, which only grow.
//
// Not thread-safe.
class Rings {
 public:
  Rings(std::vector<RingView> members, int rank, int num_slots);

  // From now on, the member's ring and counters are at the addresses in `view`.
  void Replace(int member, const RingView& view);

  const pool::Coherence& coherence() const {
    return members_[rank_].doorbells.coherence();
  }
  int size() const { return static_cast<int>(members_.size()); }
  int rank() const { return rank_; }

  std::byte* Slot(int member, uint64_t round) const {
    return members_[member].slots[round % num_slots_];
  }

  // BehindPublishing returns `member` if it has not published `rounds` rounds,
  // or -1 if it has. BehindReleasing returns a peer that has not released
  // `rounds` rounds, or -1 if all peers have.
  int BehindPublishing(int member, uint64_t rounds);
  int BehindReleasing(uint64_t rounds);
  // Returns a peer that may still read the old contents of this member's slot
  // for `round`, or -1 if there is none.
  int BehindSlot(uint64_t round);

  void Publish(uint64_t rounds);
  void Release(uint64_t rounds);

  // Returns at least `bytes` bytes of memory that no other process sees. One
  // call at a time may use it. The memory stays allocated, because allocating
  // new pages would cost more than using them.
  std::byte* Scratch(uint64_t bytes);

 private:
  struct Clocks {
    uint64_t published = 0;
    uint64_t released = 0;
  };

  std::vector<RingView> members_;
  std::vector<Clocks> seen_;
  int rank_;
  uint64_t num_slots_;
  std::vector<std::byte> scratch_;
};

// Number of bytes that a rank has moved.
struct Traffic {
  uint64_t bytes_published = 0;  // written to the pool
  uint64_t bytes_retrieved = 0;  // read from the pool
};

// Executes one plan, a few steps at a time, and never waits: `Advance` returns
// as soon as a step has to wait for a peer.
//
// Not thread-safe. Different threads may call Advance one after another.
class Execution {
 public:
  // `base_round` is the number of rounds of the group's earlier calls. `input`
  // has plan::InputBytes, `output` has plan::OutputBytes, and they do not
  // overlap. In a collective in levels, `buffers` replaces both. Outputs of at
  // least `past_caches_bytes` are written past the caches.
  Execution(std::shared_ptr<const plan::Plan> plan, Rings* rings,
            uint64_t base_round, DType dtype, ReduceOp reduce_op,
            const std::byte* input, std::byte* output,
            uint64_t past_caches_bytes, TakenRows* rows = nullptr,
            const MemberBuffers* buffers = nullptr);

  // Runs steps until the plan is done (returns true), or until the next step
  // has to wait for a peer (returns false). Fails if TakenRows::ReadyFor fails.
  // After an error, Advance must not be called again.
  Result<bool> Advance(Traffic* traffic);

  // Number of steps run so far, which shows whether Advance made progress.
  size_t steps_done() const { return next_step_; }

  // The member for which the last Advance stopped, or -1.
  int waiting_for() const { return waiting_for_; }

 private:
  bool Ready(const plan::Step& step);
  void Run(const plan::Step& step, Traffic* traffic);
  void RunInLevels(const plan::Step& step, Traffic* traffic);
  // This rank keeps private copies of the sources that it puts into its slots.
  // Returns where it keeps the copy of the source at `offset` in its slot for
  // `round`.
  std::byte* KeptSource(uint64_t round, uint64_t offset) const {
    return kept_sources_ + round % source_rounds_ * source_bytes_ + offset;
  }
  std::byte* OwnSlot(uint64_t round) const {
    return rings_->Slot(rings_->rank(), base_round_ + round);
  }
  // Makes bytes of this rank's own slot visible to the peers, and counts them
  // in `traffic`.
  void Publish(const std::byte* slot, uint64_t bytes, Traffic* traffic);
  // Returns the bytes of the peer's slot that the step reads, once they are
  // visible to this rank, and counts them in `traffic`.
  const std::byte* Acquire(int peer, const plan::Step& step, Traffic* traffic);
  void Put(const plan::Step& step, const std::byte* source, Traffic* traffic);
  void CopyToOutput(std::byte* to, const std::byte* from, uint64_t bytes);
  // Reduces the sources of all members, and stores the result at `to`. `own` is
  // this rank's own source, and the others are in the peers' slots.
  void RunReduce(const plan::Step& step, const std::byte* own, std::byte* to,
                 Traffic* traffic);

  std::shared_ptr<const plan::Plan> plan_;
  Rings* rings_;
  uint64_t base_round_;
  DType dtype_;
  ReduceOp reduce_op_;
  const std::byte* input_;
  std::byte* output_;
  TakenRows* rows_;               // if the operation moves rows, or null
  const MemberBuffers* buffers_;  // of a collective in levels, or null
  // Private copies of the sources that this rank has put and not yet reduced,
  // for up to `source_rounds_` rounds. Used in levels, if this rank also puts
  // its own source of each reduction into its slot.
  std::byte* kept_sources_ = nullptr;
  uint64_t source_rounds_ = 0;
  uint64_t source_bytes_ = 0;  // of a round
  bool past_caches_;           // true if copies to the output bypass the caches
  size_t next_step_ = 0;
  int waiting_for_ = -1;
  std::vector<const std::byte*> sources_;
};

}  // namespace jax_cxl::cpu

#endif  // JAX_CXL_ENGINE_CPU_EXECUTOR_H_
