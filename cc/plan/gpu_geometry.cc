#include "cc/plan/gpu_geometry.h"

#include <algorithm>
#include <bit>

#include "cc/pool/layout/layout.h"

namespace jax_cxl::plan {

Stripes GpuStripes(uint64_t slot_bytes, int num_devices, int num_ranks,
                   uint32_t num_blocks) {
  constexpr uint64_t kMinUnitBytes = kSlotAlignment, kMaxUnitBytes = 1024;
  const uint64_t unit = std::bit_floor(slot_bytes / num_ranks / num_blocks);
  return {.num_blocks = num_blocks,
          .unit_bytes = static_cast<uint32_t>(
              std::clamp(unit, kMinUnitBytes, kMaxUnitBytes)),
          .slot_step = num_devices > 1 ? 1u : 0};
}

Geometry GpuGeometry(int num_devices, int num_ranks, uint64_t slot_bytes) {
  // The copy engines' two pipelines then have three slots each: one slot is
  // filled, one is read, and one is in between.
  constexpr int kMinSlots = 6;
  Geometry geometry;
  geometry.num_devices = num_devices;
  geometry.device_parts = num_devices > 1 ? kGpuBlocks : 1;
  // Two slots per device, so that half of the ring is filled while the other
  // half is read.
  geometry.num_slots = std::clamp(2 * num_devices, kMinSlots, pool::kMaxSlots);
  // If ordinary memory emulates the pool, rings of this size stay in the
  // processor's cache. Moving a slot of this size takes long enough to hide the
  // round trip of a doorbell.
  geometry.slot_bytes = slot_bytes;
  // If each rank reads all inputs, the load of the devices grows with the
  // square of the number of ranks. If ranks share the work, each rank needs one
  // get from each peer.
  geometry.all_read_bytes = (uint64_t{768} << 10) / num_ranks / num_ranks;
  // For smaller chunks, doorbells cost more than the overlap saves. Several
  // devices share the load of a message only if it has several chunks.
  geometry.min_chunk_bytes = uint64_t{num_devices > 1 ? 24u : 256u} << 10;
  return geometry;
}

Geometry FlaggedGeometry(int num_ranks, uint64_t slot_bytes) {
  // Reading everything takes up to twice the bytes, but crosses the link once
  // instead of twice.
  return {.slot_bytes = slot_bytes,
          .num_slots = kFlaggedSlots,
          .all_read_bytes = std::min(
              slot_bytes, kFlaggedSlotsAt55GBps * slot_bytes / num_ranks)};
}

bool IsFlagged(const Request& request, uint64_t most) {
  const uint64_t block = request.count * request.element_bytes;
  return std::max(request.num_ranks * block,
                  InputBytes(request) + OutputBytes(request)) <= most;
}

}  // namespace jax_cxl::plan
