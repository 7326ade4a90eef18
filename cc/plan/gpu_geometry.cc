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
  // The copy engines work as two pipelines (cc/engine/cuda/copy_engine.h). With
  // six slots, each pipeline has three: one slot is filled, one is read, and
  // one is in between.
  constexpr int kMinSlots = 6;
  Geometry geometry;
  geometry.num_devices = num_devices;
  geometry.device_parts = num_devices > 1 ? kGpuBlocks : 1;
  // Two slots per device, so that half of the ring is filled while the other
  // half is read.
  geometry.num_slots = std::clamp(2 * num_devices, kMinSlots, pool::kMaxSlots);
  // The default is kGpuSlotBytes for two reasons. If ordinary memory emulates
  // the pool, rings of such slots stay in the processor's cache. And moving
  // such a slot takes long enough to hide the round trip of a doorbell.
  geometry.slot_bytes = slot_bytes;
  // If each rank reads all inputs, the load of the devices grows with the
  // square of the number of ranks. If ranks share the work, the load grows only
  // in proportion to that number, but a call takes a second exchange, with one
  // get from each peer. So the limit falls with the square of the number of
  // ranks.
  geometry.all_read_bytes = (uint64_t{768} << 10) / num_ranks / num_ranks;
  // If chunks are smaller than this, doorbells cost more time than the overlap
  // saves. With several devices the limit is lower: smaller chunks pay off,
  // because the devices share the load of a message only if it has several
  // chunks.
  geometry.min_chunk_bytes = uint64_t{num_devices > 1 ? 24u : 256u} << 10;
  return geometry;
}

uint64_t KernelMinChunkBytes(const Request& request, const Geometry& geometry) {
  const uint64_t least = geometry.min_chunk_bytes;
  const uint64_t block = request.count * request.element_bytes;
  const bool exchange = request.op == Op::kAllGather ||
                        request.op == Op::kAllToAll ||
                        request.op == Op::kAllReduce;
  const bool one_chunk = block >= least && block < 2 * least;
  return request.num_ranks == 2 && exchange && one_chunk ? least / 2 : least;
}

Geometry FlaggedGeometry(int num_ranks, uint64_t slot_bytes) {
  // Blocks of up to all_read_bytes are so short that every rank should read all
  // inputs. With more than two ranks, it reads more bytes than if ranks shared
  // the reduction. But the data cross the link only once, and with a shared
  // reduction they would cross it twice in a row.
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
