#ifndef JAX_CXL_SIMULATOR_PLACEMENT_H_
#define JAX_CXL_SIMULATOR_PLACEMENT_H_

#include <cstdint>
#include <vector>

#include "cc/plan/gpu_geometry.h"
#include "cc/plan/plan.h"

namespace jax_cxl::sim {

// Returns how a kernel of the CUDA engine divides its data into stripes. In
// large groups the units are smaller, and very large groups have fewer blocks.
plan::Stripes KernelStripes(uint64_t slot_bytes, int cards, int num_ranks);

// The cards on which the bytes of slots lie. Slot s of rank r lies on card
// (r * cards / ranks + s) % cards (comm::AllocateChannel). If the stripes are
// Stripes(), all bytes of a round lie in one slot. With other stripes, each
// block of a kernel uses a slot of its own in a round, and the stripes of the
// block lie in that slot.
class Placement {
 public:
  Placement(const plan::Geometry& geometry, const plan::Stripes& stripes,
            int num_ranks, int cards);

  int cards() const { return cards_; }

  // Adds to by_card[c], for each card c, how many of the bytes [at, at + bytes)
  // of the owner's round lie on this card.
  void Add(int owner, uint64_t round, uint64_t at, uint64_t bytes,
           std::vector<uint64_t>& by_card) const;

 private:
  // Returns how many of the first `blocks` blocks of a round are on `card`. The
  // round begins in `slot`, and the rank's first slot lies on card 0.
  uint64_t Blocks(uint64_t slot, uint64_t blocks, int card) const {
    return blocks_[(slot * (stripes_.num_blocks + 1) + blocks) * cards_ + card];
  }
  // Like Blocks, but for the first `bytes` bytes of the round.
  uint64_t Bytes(uint64_t slot, uint64_t bytes, int card) const;

  const plan::Stripes stripes_;
  const uint64_t num_slots_;
  const int num_ranks_;
  const int cards_;
  std::vector<uint64_t> blocks_;
};

}  // namespace jax_cxl::sim

#endif  // JAX_CXL_SIMULATOR_PLACEMENT_H_
