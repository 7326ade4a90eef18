#ifndef JAX_CXL_ENGINE_SIM_PLACEMENT_H_
#define JAX_CXL_ENGINE_SIM_PLACEMENT_H_

#include <cstdint>
#include <vector>

#include "cc/plan/gpu_geometry.h"
#include "cc/plan/plan.h"

namespace jax_cxl::sim {

// The stripes of a kernel of the CUDA engine. Groups of more members than that
// takes have smaller units, and at last fewer blocks.
plan::Stripes KernelStripes(uint64_t slot_bytes, int cards, int num_ranks);

// Which cards the bytes of slots lie on: slot s of rank r on card (r * cards /
// ranks + s) % cards (comm::AllocateChannel), and of each round in its slot a
// whole (Stripes()), or the stripes of each block in the block's.
class Placement {
 public:
  Placement(const plan::Geometry& geometry, const plan::Stripes& stripes,
            int num_ranks, int cards);

  int cards() const { return cards_; }

  // Adds what each card has of bytes [at, at + bytes) of a round of `owner`.
  void Add(int owner, uint64_t round, uint64_t at, uint64_t bytes,
           std::vector<uint64_t>& by_card) const;

 private:
  // Of a rank whose first slot lies on card 0: how many of the first `blocks`
  // blocks are on `card` in a round that begins in `slot`.
  uint64_t Blocks(uint64_t slot, uint64_t blocks, int card) const {
    return blocks_[(slot * (stripes_.num_blocks + 1) + blocks) * cards_ + card];
  }
  // How many of the first `bytes` bytes of such a round.
  uint64_t Bytes(uint64_t slot, uint64_t bytes, int card) const;

  const plan::Stripes stripes_;
  const uint64_t num_slots_;
  const int num_ranks_;
  const int cards_;
  std::vector<uint64_t> blocks_;
};

}  // namespace jax_cxl::sim

#endif  // JAX_CXL_ENGINE_SIM_PLACEMENT_H_
