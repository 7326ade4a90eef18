#ifndef JAX_CXL_PLAN_GPU_GEOMETRY_H_
#define JAX_CXL_PLAN_GPU_GEOMETRY_H_

#include "cc/plan/plan.h"

namespace jax_cxl::plan {

// How the thread blocks of a kernel divide slots: byte x of a slot belongs to
// block (x / unit_bytes) % num_blocks. A block reads and writes only its own
// bytes of every slot, and has its own doorbells. So it communicates only with
// the block of the same number in the other ranks.
//
// Therefore the blocks may use different slots in the same round. In a pool of
// several devices, block b uses the slot that is `slot_step` slots after that
// of block b - 1. A round of one rank then lies on all devices, and ranks in
// the same round load all devices equally, for any number of ranks.
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

// Returns stripes with the largest units, between 128 and 1024 bytes, such that
// block 0 has the first unit of each rank's part of a slot.
Stripes GpuStripes(uint64_t slot_bytes, int num_devices, int num_ranks,
                   uint32_t num_blocks);

// Returns the layout of the rings of a group of GPUs, with slots of
// `slot_bytes` bytes, in a pool of `num_devices` devices. The simulator uses
// this layout unchanged, for links of 20 GB/s. The CUDA engine chooses another
// size of slots, and its kernels put another number of bytes into a round. Both
// choices come from measurements on links of 55 GB/s
// (cc/gpu/cuda/channel/device_connection.h).
inline constexpr uint64_t kGpuSlotBytes = uint64_t{2} << 20;
Geometry GpuGeometry(int num_devices, int num_ranks,
                     uint64_t slot_bytes = kGpuSlotBytes);

// Returns the smallest chunk that is worth a round for a kernel that executes
// the request. It is geometry.min_chunk_bytes, or half of that if two GPUs
// exchange blocks that would otherwise be one chunk. Each link would first
// carry this chunk in one direction, and then the peer's in the other. With
// two chunks it carries data in both at once.
uint64_t KernelMinChunkBytes(const Request& request, const Geometry& geometry);

// Short messages use a ring of their own, whose data carry flags
// (cc/engine/cuda/flagged/flagged.h). Each short message takes one round of
// that ring. A slot holds kFlaggedBytes of data, or up to kMostFlaggedBytes if
// memory allows.
inline constexpr uint64_t kFlaggedBytes = uint64_t{64} << 10;
inline constexpr uint64_t kMostFlaggedBytes = uint64_t{256} << 10;
inline constexpr int kFlaggedSlots = 4;
Geometry FlaggedGeometry(int num_ranks, uint64_t slot_bytes = kFlaggedBytes);

// The factor by which flags enlarge a message. Each flag is as large as the
// data to which it belongs.
inline constexpr int kFlaggedExpansion = 2;

// Returns true if the message is so short that flags in the data (twice the
// bytes) are faster than a fence, a doorbell and a poll. The condition is that
// the blocks of all ranks take at most `most` bytes together, and that the
// input and output of a rank take at most `most` bytes together. The faster the
// links, the larger the best `most`.
bool IsFlagged(const Request& request, uint64_t most);
inline constexpr uint64_t kFlaggedAt20GBps = uint64_t{64} << 10;  // modeled
// For links of 55 GB/s, the best `most` is the size of the data in this many
// slots of the ring for short messages (measured).
inline constexpr uint64_t kFlaggedSlotsAt55GBps = 4;

}  // namespace jax_cxl::plan

#endif  // JAX_CXL_PLAN_GPU_GEOMETRY_H_
