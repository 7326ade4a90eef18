#ifndef JAX_CXL_PLAN_GPU_GEOMETRY_H_
#define JAX_CXL_PLAN_GPU_GEOMETRY_H_

#include "cc/plan/plan.h"

namespace jax_cxl::plan {

// How the thread blocks of a kernel share out slots: byte x of a slot belongs
// to block (x / unit_bytes) % num_blocks. A block reads and writes nothing else
// of any slot, and has doorbells of its own, so that it communicates with the
// same block of the other ranks and with nobody else.
//
// Hence nothing keeps the blocks of one round in one slot. In a pool of several
// devices each is `slot_step` slots ahead of the block before: a round of one
// rank then lies on all devices, and ranks in step load them alike however many
// there are.
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

// Units as large as let each rank's part of a slot start with the first block.
Stripes GpuStripes(uint64_t slot_bytes, int num_devices, int num_ranks,
                   uint32_t num_blocks);

// The rings of a group of GPUs in a pool of `num_devices` devices that has
// space for slots of `slot_bytes`. The CUDA engine and the simulator work with
// it, for kernels.
inline constexpr uint64_t kGpuSlotBytes = uint64_t{2} << 20;
Geometry GpuGeometry(int num_devices, int num_ranks,
                     uint64_t slot_bytes = kGpuSlotBytes);

// Short messages have a ring of their own, whose data carry flags
// (cc/engine/cuda/flagged/flagged.h): calls of one round in it, of slots of
// this size.
inline constexpr uint64_t kFlaggedBytes = uint64_t{64} << 10;
inline constexpr int kFlaggedSlots = 4;
Geometry FlaggedGeometry(int num_ranks);

// A flag for as many bytes of data.
inline constexpr int kFlaggedExpansion = 2;

// Whether twice the bytes take less time than a fence, a doorbell and a poll:
// where all ranks' blocks together, and what a rank holds, are `most` bytes at
// most. The faster the links, the more that is.
bool IsFlagged(const Request& request, uint64_t most);
inline constexpr uint64_t kFlaggedAt20GBps = uint64_t{64} << 10;   // modelled
inline constexpr uint64_t kFlaggedAt55GBps = uint64_t{256} << 10;  // measured

}  // namespace jax_cxl::plan

#endif  // JAX_CXL_PLAN_GPU_GEOMETRY_H_
