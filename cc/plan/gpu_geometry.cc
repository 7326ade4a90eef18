#include "cc/plan/gpu_geometry.h"

#include <algorithm>
#include <bit>

#include "cc/pool/layout/layout.h"

namespace jax_cxl::plan {

Stripes GpuStripes(uint64_t slot_bytes, int num_devices, int num_ranks,
                   uint32_t num_blocks) {
  constexpr uint64_t kMinUnitBytes = kSlotAlignment, kMaxUnitBytes = 1024;
  Stripes stripes;
  stripes.num_blocks = num_blocks;
  stripes.unit_bytes = static_cast<uint32_t>(
      std::clamp(std::bit_floor(slot_bytes / num_ranks / num_blocks),
                 kMinUnitBytes, kMaxUnitBytes));
  stripes.slot_step = num_devices > 1 ? 1 : 0;
  return stripes;
}

Geometry GpuGeometry(int num_devices, int num_ranks, uint64_t slot_bytes) {
  // The copy engines' two lines then have three slots each: one is filled, one
  // read, and one is on its way between the two.
  constexpr int kMinSlots = 6;
  Geometry geometry;
  geometry.num_devices = num_devices;
  geometry.device_parts = num_devices > 1 ? kGpuBlocks : 1;
  // Two slots a device, so that one half of a ring is filled while the other is
  // read.
  geometry.num_slots = std::clamp(2 * num_devices, kMinSlots, pool::kMaxSlots);
  // Rings of this size stay in the processor's cache, where the pool is
  // emulated in memory, and a slot takes long enough to hide a doorbell's round
  // trip.
  geometry.slot_bytes = slot_bytes;
  // Reading everything loads the devices with the square of the ranks, sharing
  // the work costs each rank a get from each peer.
  geometry.all_read_bytes = (uint64_t{768} << 10) / num_ranks / num_ranks;
  // Chunks smaller than this cost more in doorbells than they overlap. Several
  // devices also share the load of a message that has several chunks.
  geometry.min_chunk_bytes = uint64_t{num_devices > 1 ? 24u : 256u} << 10;
  return geometry;
}

Geometry FlaggedGeometry(int num_ranks) {
  Geometry geometry;
  geometry.slot_bytes = kFlaggedBytes;
  geometry.num_slots = kFlaggedSlots;
  // Twice the bytes, but one way over the link instead of two.
  geometry.all_read_bytes =
      std::min(kFlaggedBytes, (uint64_t{256} << 10) / num_ranks);
  return geometry;
}

bool IsFlagged(const Request& request, uint64_t most) {
  const uint64_t block = request.count * request.element_bytes;
  return std::max(request.num_ranks * block,
                  InputBytes(request) + OutputBytes(request)) <= most;
}

}  // namespace jax_cxl::plan
