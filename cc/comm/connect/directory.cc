#include "cc/comm/connect/directory.h"

#include <algorithm>
#include <cstring>
#include <mutex>

#include "cc/pool/layout/geometry.h"
#include "cc/pool/layout/words.h"

namespace jax_cxl::comm {

namespace {

bool IsOpen(uint64_t version) { return version % 2 != 0; }

uint64_t Stride(uint64_t slot_bytes) {
  return pool::RoundUp(slot_bytes, pool::kInterferenceBytes);
}

// One mutex for all ranks of the process, because channels are opened rarely.
std::mutex& DirectoryMutex() {
  static std::mutex& mutex = *new std::mutex;
  return mutex;
}

// Allocates the control block and the slots of `place`, starting with pool
// device `home`. On error, the parts that are not allocated have offset 0. No
// allocated part has offset 0, because the pool's header is there.
Status AllocateParts(int extents, int home, Arena* arena,
                     uint64_t control_bytes, pool::ChannelPlace* place) {
  CXL_ASSIGN_OR_RETURN(place->control, arena->Allocate(home, control_bytes));
  // Slots of one device are adjacent, so that two of them can serve as one
  // larger slot.
  const uint64_t stride = Stride(place->slot_bytes);
  const int num_slots = place->num_slots;
  for (int first = 0; first < std::min(extents, num_slots); ++first) {
    const uint64_t slots = (num_slots - first - 1) / extents + 1;
    CXL_ASSIGN_OR_RETURN(
        uint64_t offset,
        arena->Allocate((home + first) % extents, slots * stride));
    for (int slot = first; slot < num_slots; slot += extents) {
      place->slots[slot] = offset;
      offset += stride;
    }
  }
  return OkStatus();
}

// Checks a place that a rank has published, and sets its addresses in `found`.
Status Locate(const pool::Pool& pool, const pool::ChannelPlace& place,
              const pool::ChannelPlace& mine, uint64_t control_bytes,
              std::string_view name, FoundChannel* found) {
  if (place.slot_bytes != mine.slot_bytes ||
      place.num_slots != mine.num_slots ||
      place.payload_bytes != mine.payload_bytes)
    return Error(
        Code::kMismatch, name, " uses ", place.num_slots, " slots of ",
        place.slot_bytes, " bytes, but this rank uses ", mine.num_slots, " of ",
        mine.slot_bytes,
        "; set JAX_CXL_SLOT_BYTES and JAX_CXL_NUM_SLOTS to the same values in "
        "all processes");
  // The words of the control block have 48 bits, and count up from
  // `place.first`. So `place.first` is valid only if it leaves room to count.
  bool inside = place.first <= pool::kValueMask / 2;
  auto locate = [&](uint64_t offset, uint64_t bytes) {
    std::byte* at = offset % pool::kInterferenceBytes == 0
                        ? pool.At(offset, bytes)
                        : nullptr;
    inside = inside && at != nullptr;
    return at;
  };
  found->control = locate(place.control, control_bytes);
  for (int slot = 0; slot < place.num_slots; ++slot)
    found->slots[slot] = locate(place.slots[slot], place.slot_bytes);
  if (!inside)
    return Error(Code::kDataLoss, "the entry of ", name,
                 " in the pool is corrupt: it names a place outside the pool; "
                 "restart the job, and check what else writes to this pool");
  return OkStatus();
}

}  // namespace

Result<pool::ChannelPlace> AllocateChannel(const pool::Pool& pool, Arena* arena,
                                           const Group& group, uint64_t key,
                                           const plan::Geometry& geometry,
                                           uint64_t control_bytes) {
  const int size = static_cast<int>(group.members.size());
  const int extents = pool.num_extents();
  // The members' first slots are spread evenly over the pool devices, and the
  // slot of each next round is on the next device. If there are enough devices,
  // members in the same round write to different devices. Groups with different
  // first members also start on different devices, because such groups may run
  // at the same time: in levels, there is one such group for each device of a
  // process.
  const int home =
      (group.members.front() + group.self * extents / size) % extents;

  pool::ChannelPlace place = {};
  place.group = key;
  place.slot_bytes = static_cast<uint32_t>(geometry.slot_bytes);
  place.num_slots = static_cast<uint16_t>(geometry.num_slots);
  const Status allocated =
      AllocateParts(extents, home, arena, control_bytes, &place);
  if (!allocated.ok()) {
    FreeChannel(pool, arena, group.rank(), place, control_bytes);
    return allocated;
  }
  // The memory may contain words of an earlier job. Such words carry the epoch
  // of their job, but epochs repeat, so a peer could mistake them for words of
  // this job. So the owner clears the words that peers poll before it publishes
  // the place.
  // Memory that is not reserved yet is new, and all zeros.
  if (!pool.reserved()) return place;
  std::byte* control = pool.At(place.control, control_bytes);
  std::memset(control, 0, control_bytes);
  pool.coherence().PublishPayload(control, control_bytes);
  return place;
}

void FreeChannel(const pool::Pool& pool, Arena* arena, int rank,
                 const pool::ChannelPlace& place, uint64_t control_bytes) {
  auto free = [&](uint64_t offset, uint64_t bytes) {
    for (int extent = 0; extent < pool.num_extents(); ++extent) {
      const pool::Pool::Range range = pool.arena(extent, rank);
      if (offset - range.offset < range.bytes)
        arena->Free(extent, offset, bytes);
    }
  };
  free(place.control, control_bytes);
  for (int slot = 0; slot < place.num_slots; ++slot)
    free(place.slots[slot], Stride(place.slot_bytes));
}

Result<int> EnterChannel(pool::Pool* pool, const pool::Doorbells& doorbells,
                         const Group& group, const pool::ChannelPlace& place) {
  std::lock_guard lock(DirectoryMutex());
  pool::ChannelEntry* channels = pool->rank_page(group.rank())->channels;
  for (int i = 0; i < pool::kMaxChannels; ++i) {
    pool::ChannelEntry& entry = channels[i];
    const uint64_t version = doorbells.Read(&entry.version);
    if (IsOpen(version)) continue;
    pool::GroupMembers& noted = pool->recorder(group.rank())->groups[i];
    noted = {};
    for (int32_t member : group.members)
      noted.bits[member / 64] |= uint64_t{1} << member % 64;
    pool->coherence().PublishPayload(&noted, sizeof(noted));
    pool::StoreWords(&entry.place, place);
    pool->coherence().PublishPayload(&entry.place, sizeof(place));
    doorbells.Ring(&entry.version, version + 1);
    return i;
  }
  return Error(Code::kResourceExhausted, "a rank can use at most ",
               pool::kMaxChannels,
               " different groups of ranks at a time; wait for the results "
               "of some of them (jax.block_until_ready) before you use more "
               "groups");
}

void CloseChannel(pool::Pool* pool, const pool::Doorbells& doorbells, int rank,
                  int index) {
  std::lock_guard lock(DirectoryMutex());
  uint64_t* version = &pool->rank_page(rank)->channels[index].version;
  doorbells.Ring(version, doorbells.Read(version) + 1);
}

Result<std::optional<FoundChannel>> FindChannel(
    const pool::Pool& pool, const pool::Doorbells& doorbells, int rank,
    const pool::ChannelPlace& mine, uint64_t control_bytes,
    std::string_view name) {
  for (const pool::ChannelEntry& entry : pool.rank_page(rank)->channels) {
    const uint64_t version = doorbells.Read(&entry.version);
    if (version == 0) break;
    if (!IsOpen(version)) continue;
    const auto place = pool.coherence().AcquireWords(entry.place);
    if (place.group != mine.group || doorbells.Read(&entry.version) != version)
      continue;
    FoundChannel found = {&entry.version, version, place.first};
    CXL_RETURN_IF_ERROR(Locate(pool, place, mine, control_bytes, name, &found));
    return std::optional(found);
  }
  return std::optional<FoundChannel>();
}

}  // namespace jax_cxl::comm
