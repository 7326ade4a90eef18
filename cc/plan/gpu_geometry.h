#ifndef JAX_CXL_PLAN_GPU_GEOMETRY_H_
#define JAX_CXL_PLAN_GPU_GEOMETRY_H_

#include "cc/plan/plan.h"

namespace jax_cxl::plan {

// How the thread blocks of a kernel divide slots: byte x of a slot belongs to
// block (x / unit_bytes) % num_blocks. A block reads and writes only its own
// bytes of every slot. It has its own doorbells, so it communicates only with
// the same block of the other ranks.
//
// Therefore the blocks of one round may use different slots. In a pool of
// several devices, each block is `slot_step` slots ahead of the previous block.
// A round of one rank then lies on all devices, and ranks in the same round
// load all devices equally, for any number of ranks.
struct Stripes {
  uint32_t num_blocks = 1;  // a power of two
  uint32_t unit_bytes = 1;  // a power of two, at least 16
  uint32_t slot_step = 0;

  constexpr uint64_t period() const {
    return uint64_t{num_blocks} * unit_bytes;
  }
};

constexpr uint64_t SlotOfBlock(uint64_t round, uint64_t block,
                               uint64_t slot_step, uint64_t num_slots) {
  return (round + block * slot_step) % num_slots;
}

inline constexpr uint32_t kGpuBlocks = 64;

// Chooses the largest units such that block 0 has the first unit of each rank's
// part of a slot.
Stripes GpuStripes(uint64_t slot_bytes, int num_devices, int num_ranks,
                   uint32_t num_blocks);

// Returns the layout of the rings of a group of GPUs, for a pool of
// `num_devices` devices with space for slots of `slot_bytes`. The simulator
// uses this layout unchanged, for links of 20 GB/s. The CUDA engine uses slots
// of another size, and its kernels use other rounds. Both were measured on
// links of 55 GB/s (cc/comm/cuda/device_connection.h).
inline constexpr uint64_t kGpuSlotBytes = uint64_t{2} << 20;
Geometry GpuGeometry(int num_devices, int num_ranks,
                     uint64_t slot_bytes = kGpuSlotBytes);

// Short messages use a ring of their own, whose data carry flags
// (cc/engine/cuda/flagged/flagged.h). Each call takes one round of that ring. A
// slot holds kFlaggedBytes of data, or more if memory allows.
inline constexpr uint64_t kFlaggedBytes = uint64_t{64} << 10;
inline constexpr uint64_t kMostFlaggedBytes = uint64_t{256} << 10;
inline constexpr int kFlaggedSlots = 4;
Geometry FlaggedGeometry(int num_ranks, uint64_t slot_bytes = kFlaggedBytes);

// Each flag is as large as the data it belongs to, so messages double in size.
inline constexpr int kFlaggedExpansion = 2;

// Returns true if the message is so short that flags in the data (twice the
// bytes) are faster than a fence, a doorbell and a poll. This holds if the
// blocks of all ranks take at most `most` bytes together, and so do the input
// and output of a rank. Faster links allow a larger `most`.
bool IsFlagged(const Request& request, uint64_t most);
inline constexpr uint64_t kFlaggedAt20GBps = uint64_t{64} << 10;  // modeled
// In slots; measured with links of 55 GB/s.
inline constexpr uint64_t kFlaggedSlotsAt55GBps = 4;

}  // namespace jax_cxl::plan

#endif  // JAX_CXL_PLAN_GPU_GEOMETRY_H_
