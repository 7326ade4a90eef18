#include "cc/comm/connection.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <utility>

#include "cc/comm/directory.h"

namespace jax_cxl::comm {
namespace {

// Enough to overlap publication, retrieval and a peer's lateness. Two slots a
// device, so that half a ring is filled while the other half is read.
constexpr int kMinSlots = 4;
constexpr uint64_t kMaxSlotBytes = uint64_t{1} << 20;
constexpr uint64_t kMinSlotBytes = uint64_t{4} << 10;
// A rank is a member of a few groups: the world, one per mesh axis, ...
constexpr uint64_t kGroupsPerArena = 4;
// What a submission carries: copying more costs more than it saves.
constexpr uint64_t kMaxPayloadBytes = uint64_t{4} << 10;
constexpr uint64_t kMinPayloadBytes = plan::kSlotAlignment;
// The part of a pool device that a channel's submissions may take.
constexpr uint64_t kSubmissionsPerArena = 16;

// Follows from the pool alone, so that all ranks choose the same.
plan::Geometry ChooseGeometry(const pool::Pool& pool, const Options& options) {
  plan::Geometry geometry;
  geometry.num_slots =
      options.num_slots > 0
          ? options.num_slots
          : std::clamp(2 * pool.num_extents(), kMinSlots, pool::kMaxSlots);
  geometry.num_devices = pool.num_extents();
  uint64_t arena = 0;
  for (int extent = 0; extent < pool.num_extents(); ++extent)
    arena += pool.arena(extent, 0).bytes;
  geometry.slot_bytes =
      options.slot_bytes > 0
          ? options.slot_bytes
          : std::clamp(std::bit_floor(arena / (kGroupsPerArena + 1) /
                                      geometry.num_slots),
                       kMinSlotBytes, kMaxSlotBytes);
  return geometry;
}

uint64_t ChoosePayloadBytes(const pool::Pool& pool) {
  uint64_t arena = std::numeric_limits<uint64_t>::max();
  for (int extent = 0; extent < pool.num_extents(); ++extent)
    arena = std::min(arena, pool.arena(extent, 0).bytes);
  return std::clamp(
      std::bit_floor(arena / kSubmissionsPerArena / pool::kCallRing),
      kMinPayloadBytes, kMaxPayloadBytes);
}

}  // namespace

Connection::Connection(pool::Pool* pool, const Peers* peers,
                       const Options& options, Group group, Order order)
    : pool_(pool),
      peers_(peers),
      group_(std::move(group)),
      key_(HashGroup(group_.members) + static_cast<uint64_t>(order)),
      doorbells_(pool->coherence(), pool->epoch(), &pool->guard()),
      geometry_(ChooseGeometry(*pool, options)),
      payload_bytes_(ChoosePayloadBytes(*pool)),
      places_(group_.members.size()) {}

Status Connection::Open(Arena* arena, Recorder* recorder) {
  const int size = static_cast<int>(group_.members.size());
  const int extents = pool_->num_extents();
  // Members start on devices spread evenly and all move on by one a round, so
  // that in step no two of them write to one device while there are enough.
  const int home = group_.self * extents / size;

  const uint64_t control_bytes = pool::ControlBytes(size, payload_bytes_);
  CXL_ASSIGN_OR_RETURN(uint64_t control, arena->Allocate(home, control_bytes));
  pool::ChannelPlace place = {};
  place.group = key_;
  place.control = control;
  place.slot_bytes = static_cast<uint32_t>(geometry_.slot_bytes);
  place.num_slots = static_cast<uint16_t>(geometry_.num_slots);
  place.payload_bytes = static_cast<uint16_t>(payload_bytes_);
  for (int slot = 0; slot < geometry_.num_slots; ++slot) {
    CXL_ASSIGN_OR_RETURN(
        place.slots[slot],
        arena->Allocate((home + slot) % extents, geometry_.slot_bytes));
  }
  // Doorbells carry the job's epoch, but pools are not zero and epochs come
  // round: the owner wipes what peers will poll before it says where that is.
  std::byte* block = pool_->At(control, control_bytes);
  std::memset(block, 0, control_bytes);
  pool_->coherence().PublishPayload(block, control_bytes);

  CXL_ASSIGN_OR_RETURN(
      int entry,
      EnterChannel(pool_, doorbells_, group_.members[group_.self], place));
  recorder->OpenGroup(entry, group_.members);
  places_[group_.self] = place;  // its own, it need not look up
  return OkStatus();
}

Result<bool> Connection::Find(int member) {
  const std::optional<pool::ChannelPlace> place =
      FindChannel(*pool_, doorbells_, group_.members[member], key_);
  if (!place) return false;
  if (place->slot_bytes != geometry_.slot_bytes ||
      place->num_slots != geometry_.num_slots ||
      place->payload_bytes != payload_bytes_)
    return Error(Code::kMismatch, peers_->Name(group_.members[member]),
                 " uses ", place->num_slots, " slots of ", place->slot_bytes,
                 " bytes, this rank ", geometry_.num_slots, " of ",
                 geometry_.slot_bytes,
                 ": set JAX_CXL_SLOT_BYTES and JAX_CXL_NUM_SLOTS alike on all "
                 "processes");
  places_[member] = place;
  return true;
}

Result<bool> Connection::Connect() {
  if (rings_ != nullptr) return true;
  const int size = static_cast<int>(group_.members.size());
  for (int member = 0; member < size; ++member) {
    if (places_[member]) continue;
    CXL_ASSIGN_OR_RETURN(bool found, Find(member));
    if (!found) return false;
  }
  std::vector<cpu::RingView> views;
  for (int member = 0; member < size; ++member) {
    CXL_ASSIGN_OR_RETURN(cpu::RingView view, View(member));
    views.push_back(view);
  }
  rings_ = std::make_unique<cpu::Rings>(doorbells_, std::move(views),
                                        group_.self, geometry_.num_slots);
  return true;
}

Result<cpu::RingView> Connection::View(int member) {
  const pool::ChannelPlace& place = *places_[member];
  const uint64_t control_bytes =
      pool::ControlBytes(static_cast<int>(places_.size()), payload_bytes_);
  auto* block = reinterpret_cast<pool::ControlBlock*>(
      pool_->At(place.control, control_bytes));
  cpu::RingView view;
  bool inside = block != nullptr && place.control % pool::kLineBytes == 0;
  for (int slot = 0; inside && slot < geometry_.num_slots; ++slot) {
    view.slots[slot] = pool_->At(place.slots[slot], place.slot_bytes);
    inside = view.slots[slot] != nullptr &&
             place.slots[slot] % pool::kLineBytes == 0;
  }
  if (!inside)
    return Error(Code::kDataLoss, peers_->Name(group_.members[member]),
                 " names a place outside the pool: its directory is corrupt; "
                 "restart the job, and check what else writes to this pool");
  view.published = &block->published.word;
  view.released = &block->released.word;
  blocks_.push_back(block);
  return view;
}

std::vector<int> Connection::Missing() const {
  std::vector<int> missing;
  for (size_t member = 0; member < places_.size(); ++member)
    if (!places_[member]) missing.push_back(static_cast<int>(member));
  return missing;
}

}  // namespace jax_cxl::comm
