#include "cc/simulator/placement.h"

namespace jax_cxl::sim {

plan::Stripes KernelStripes(uint64_t slot_bytes, int cards, int num_ranks) {
  constexpr uint32_t kLeastUnit = 16,
                     kFewest = plan::kSlotAlignment / kLeastUnit;
  for (uint32_t blocks = plan::kGpuBlocks;; blocks /= 2) {
    plan::Stripes stripes =
        plan::GpuStripes(slot_bytes, cards, num_ranks, blocks);
    while (stripes.unit_bytes > kLeastUnit &&
           num_ranks * stripes.period() > slot_bytes)
      stripes.unit_bytes /= 2;
    if (blocks == kFewest || num_ranks * stripes.period() <= slot_bytes)
      return stripes;
  }
}

Placement::Placement(const plan::Geometry& geometry,
                     const plan::Stripes& stripes, int num_ranks, int cards)
    : stripes_(stripes),
      num_slots_(geometry.num_slots),
      num_ranks_(num_ranks),
      cards_(cards) {
  std::vector<uint64_t> sum(cards);
  for (uint64_t slot = 0; slot < num_slots_; ++slot) {
    sum.assign(cards, 0);
    blocks_.insert(blocks_.end(), sum.begin(), sum.end());
    for (uint32_t block = 0; block < stripes.num_blocks; ++block) {
      ++sum[plan::SlotOfBlock(slot, block, stripes.slot_step, num_slots_) %
            cards];
      blocks_.insert(blocks_.end(), sum.begin(), sum.end());
    }
  }
}

void Placement::Add(int owner, uint64_t round, uint64_t at, uint64_t bytes,
                    std::vector<uint64_t>& by_card) const {
  const int home =
      static_cast<int>(static_cast<int64_t>(owner) * cards_ / num_ranks_);
  const uint64_t slot = round % num_slots_;
  for (int card = 0; card < cards_; ++card) {
    by_card[(home + card) % cards_] +=
        Bytes(slot, at + bytes, card) - Bytes(slot, at, card);
  }
}

uint64_t Placement::Bytes(uint64_t slot, uint64_t bytes, int card) const {
  const uint64_t units = bytes / stripes_.unit_bytes;
  const uint64_t all = units / stripes_.num_blocks;
  const uint64_t more = units % stripes_.num_blocks;
  const uint64_t whole =
      all * Blocks(slot, stripes_.num_blocks, card) + Blocks(slot, more, card);
  const bool has_last = Blocks(slot, more + 1, card) > Blocks(slot, more, card);
  return whole * stripes_.unit_bytes +
         (has_last ? bytes % stripes_.unit_bytes : 0);
}

}  // namespace jax_cxl::sim
