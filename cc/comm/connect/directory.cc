#include "cc/comm/connect/directory.h"

#include <algorithm>
#include <cstring>
#include <mutex>

namespace jax_cxl::comm {

Result<pool::ChannelPlace> AllocateChannel(const pool::Pool& pool, Arena* arena,
                                           const Group& group, uint64_t key,
                                           const plan::Geometry& geometry,
                                           uint64_t control_bytes) {
  const int size = static_cast<int>(group.members.size());
  const int extents = pool.num_extents();
  // The members' first devices are spread evenly, and each member moves on by
  // one device per round. If there are enough devices, members in the same
  // round write to different devices. The first devices of groups with
  // different first members differ too, because such groups may call at the
  // same time: in levels, there is one for each GPU of a host.
  const int home =
      (group.members.front() + group.self * extents / size) % extents;

  pool::ChannelPlace place = {};
  place.group = key;
  CXL_ASSIGN_OR_RETURN(place.control, arena->Allocate(home, control_bytes));
  place.slot_bytes = static_cast<uint32_t>(geometry.slot_bytes);
  place.num_slots = static_cast<uint16_t>(geometry.num_slots);
  // Slots of one device are adjacent, so that two of them can serve as one
  // larger slot.
  const uint64_t stride = (geometry.slot_bytes + pool::kInterferenceBytes - 1) /
                          pool::kInterferenceBytes * pool::kInterferenceBytes;
  for (int first = 0; first < std::min(extents, geometry.num_slots); ++first) {
    const uint64_t slots = (geometry.num_slots - first - 1) / extents + 1;
    CXL_ASSIGN_OR_RETURN(
        uint64_t offset,
        arena->Allocate((home + first) % extents, slots * stride));
    for (int slot = first; slot < geometry.num_slots; slot += extents) {
      place.slots[slot] = offset;
      offset += stride;
    }
  }
  // The pool is not all zeros. Doorbells carry the job's epoch, but epochs
  // repeat. So the owner clears the words that peers poll before it publishes
  // their place.
  std::byte* control = pool.At(place.control, control_bytes);
  std::memset(control, 0, control_bytes);
  pool.coherence().PublishPayload(control, control_bytes);
  return place;
}

Result<int> EnterChannel(pool::Pool* pool, const pool::Doorbells& doorbells,
                         int rank, const pool::ChannelPlace& place) {
  // One mutex for all ranks of the process, because channels are opened rarely.
  static std::mutex& mutex = *new std::mutex;
  std::lock_guard lock(mutex);
  pool::ChannelEntry* channels = pool->rank_page(rank)->channels;
  for (int i = 0; i < pool::kMaxChannels; ++i) {
    pool::ChannelEntry& entry = channels[i];
    if (doorbells.Read(&entry.ready) != 0) continue;
    entry.place = place;
    pool->coherence().PublishPayload(&entry.place, sizeof(place));
    doorbells.Ring(&entry.ready, 1);
    return i;
  }
  return Error(Code::kResourceExhausted, "a rank can be a member of at most ",
               pool::kMaxChannels, " different groups");
}

std::optional<pool::ChannelPlace> FindChannel(const pool::Pool& pool,
                                              const pool::Doorbells& doorbells,
                                              int rank, uint64_t group) {
  for (const pool::ChannelEntry& entry : pool.rank_page(rank)->channels) {
    if (doorbells.Read(&entry.ready) == 0) break;
    const pool::ChannelPlace place = pool.coherence().AcquireCopy(entry.place);
    if (place.group == group) return place;
  }
  return std::nullopt;
}

Result<ChannelMemory> LocateChannel(const pool::Pool& pool,
                                    const pool::ChannelPlace& place,
                                    const pool::ChannelPlace& expected,
                                    uint64_t control_bytes,
                                    std::string_view name) {
  if (place.slot_bytes != expected.slot_bytes ||
      place.num_slots != expected.num_slots ||
      place.payload_bytes != expected.payload_bytes)
    return Error(Code::kMismatch, name, " uses ", place.num_slots, " slots of ",
                 place.slot_bytes, " bytes, this rank ", expected.num_slots,
                 " of ", expected.slot_bytes,
                 ": set JAX_CXL_SLOT_BYTES and JAX_CXL_NUM_SLOTS alike on all "
                 "processes");
  bool inside = true;
  auto locate = [&](uint64_t offset, uint64_t bytes) {
    std::byte* at = offset % pool::kInterferenceBytes == 0
                        ? pool.At(offset, bytes)
                        : nullptr;
    inside = inside && at != nullptr;
    return at;
  };
  ChannelMemory memory;
  memory.control = locate(place.control, control_bytes);
  for (int slot = 0; slot < place.num_slots; ++slot)
    memory.slots[slot] = locate(place.slots[slot], place.slot_bytes);
  if (!inside)
    return Error(Code::kDataLoss, name,
                 " names a place outside the pool: its directory is corrupt; "
                 "restart the job, and check what else writes to this pool");
  return memory;
}

}  // namespace jax_cxl::comm
