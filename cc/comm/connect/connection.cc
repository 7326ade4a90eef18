#include "cc/comm/connect/connection.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <optional>
#include <utility>

#include "cc/pool/layout/geometry.h"

namespace jax_cxl::comm {
namespace {

constexpr uint64_t kMinSlotBytes = uint64_t{4} << 10;
// The slots are small enough that a rank's arenas hold the rings of this many
// groups. A rank is a member of a few groups: the world, one group for each
// mesh axis, ...
constexpr uint64_t kGroupsPerArena = 4;
constexpr uint64_t kMinPayloadBytes = plan::kSlotAlignment;
// The submissions of a channel take at most 1 / kSubmissionsPerArena of a
// rank's arena on a pool device.
constexpr uint64_t kSubmissionsPerArena = 16;

// The arenas of one rank: one on each pool device (extent).
struct Arenas {
  int extents;
  uint64_t bytes;     // of all together
  uint64_t smallest;  // bytes
};

Arenas ArenasOf(const pool::Pool& pool) {
  Arenas arenas = {pool.num_extents(), 0, std::numeric_limits<uint64_t>::max()};
  for (int extent = 0; extent < arenas.extents; ++extent) {
    const uint64_t bytes = pool.arena(extent, 0).bytes;
    arenas.bytes += bytes;
    arenas.smallest = std::min(arenas.smallest, bytes);
  }
  return arenas;
}

// Returns the geometry of a channel. It depends on the pool and the options
// alone, so all ranks choose the same geometry.
plan::Geometry ChooseGeometry(const Arenas& arenas, const Options& options) {
  plan::Geometry geometry;
  geometry.num_slots =
      options.num_slots > 0
          ? options.num_slots
          // Two slots per device, so that half of the ring is filled while the
          // other half is read.
          : std::clamp(2 * arenas.extents,
                       static_cast<int>(options.tuning.num_slots),
                       pool::kMaxSlots);
  geometry.num_devices = arenas.extents;
  geometry.all_read_bytes = options.tuning.all_read_bytes;
  geometry.slot_bytes =
      options.slot_bytes > 0
          ? options.slot_bytes
          : std::clamp(std::bit_floor(arenas.bytes / (kGroupsPerArena + 1) /
                                      geometry.num_slots),
                       kMinSlotBytes, options.tuning.slot_bytes);
  return geometry;
}

uint64_t ChoosePayloadBytes(const Arenas& arenas, uint64_t most) {
  return std::clamp(
      std::bit_floor(arenas.smallest / kSubmissionsPerArena / pool::kCallRing),
      kMinPayloadBytes, most);
}

}  // namespace

uint64_t NeededPoolBytes(const pool::Pool& pool, const Options& options,
                         uint64_t channels) {
  constexpr uint64_t kUnit = uint64_t{1} << 20;
  const int extents = pool.num_extents(), world = pool.world_size();
  uint64_t arena = ArenasOf(pool).smallest;
  // In a larger arena the slots are larger too, up to a limit, so the channels
  // need more bytes. So enlarge the arena until the channels fit.
  for (uint64_t needed = 0;; arena = pool::RoundUp(needed, pool::kPageBytes)) {
    const Arenas arenas = {extents, extents * arena, arena};
    const plan::Geometry geometry = ChooseGeometry(arenas, options);
    const int slots = (geometry.num_slots + extents - 1) / extents;
    const uint64_t payload =
        ChoosePayloadBytes(arenas, options.tuning.inline_bytes);
    // How many bytes a rank needs on the pool device that has the most slots of
    // a channel.
    const uint64_t control = pool::ControlBytes(world, payload);
    const uint64_t exchange = control + 2 * kMinSlotBytes;
    needed =
        exchange + channels * (slots * pool::RoundUp(geometry.slot_bytes,
                                                     pool::kInterferenceBytes) +
                               control);
    if (needed <= arena) break;
  }
  return extents *
         pool::RoundUp(pool::ControlBytes(0, world) + world * arena, kUnit);
}

Connection::Connection(pool::Pool* pool, const Peers* peers,
                       const Options& options, Group group, uint64_t salt)
    : pool_(pool),
      peers_(peers),
      group_(std::move(group)),
      key_(HashGroup(group_.members) ^ salt),
      doorbells_(pool->coherence(), pool->epoch(), &pool->guard()),
      geometry_(ChooseGeometry(ArenasOf(*pool), options)),
      payload_bytes_(
          ChoosePayloadBytes(ArenasOf(*pool), options.tuning.inline_bytes)),
      control_bytes_(pool::ControlBytes(pool->world_size(), payload_bytes_)),
      blocks_(group_.members.size(), MemberBlock{.doorbells = doorbells_}) {}

Result<pool::ChannelPlace> Connection::Allocate(Arena* arena) const {
  CXL_ASSIGN_OR_RETURN(
      pool::ChannelPlace place,
      AllocateChannel(*pool_, arena, group_, key_, geometry_, control_bytes_));
  place.payload_bytes = static_cast<uint16_t>(payload_bytes_);
  return place;
}

void Connection::Take(const pool::ChannelPlace& place) {
  place_ = place;
  place_.group = key_;
  MemberBlock& own = blocks_[group_.self];
  own = {.control = reinterpret_cast<pool::ControlBlock*>(
             pool_->At(place.control, control_bytes_)),
         .doorbells = doorbells_.From(place.first)};
  for (int slot = 0; slot < place.num_slots; ++slot)
    own.slots[slot] = pool_->At(place.slots[slot], place.slot_bytes);
  if (rings_ != nullptr) rings_->Replace(group_.self, View(group_.self));
}

Status Connection::Publish() {
  CXL_ASSIGN_OR_RETURN(entry_, EnterChannel(pool_, doorbells_, group_, place_));
  return OkStatus();
}

pool::ChannelPlace Connection::Close(uint64_t most) {
  CloseChannel(pool_, doorbells_, group_.rank(), entry_);
  entry_ = -1;
  place_.first += most + pool::kCallRing + 1;
  return place_;
}

// Looks for the member's part in the directory of its rank, and stores where
// the part is in `blocks_`. Returns false if the member currently has no part.
Result<bool> Connection::Find(int member) {
  const int rank = group_.members[member];
  CXL_ASSIGN_OR_RETURN(const std::optional<FoundChannel> found,
                       FindChannel(*pool_, doorbells_, rank, place_,
                                   control_bytes_, peers_->Name(rank)));
  if (!found) return false;
  blocks_[member] = {
      .control = reinterpret_cast<pool::ControlBlock*>(found->control),
      .doorbells = doorbells_.From(found->first),
      .entry = found->entry,
      .version = found->version,
      .slots = found->slots};
  return true;
}

cpu::RingView Connection::View(int member) const {
  const MemberBlock& block = blocks_[member];
  return {.doorbells = block.doorbells,
          .published = &block.control->published.word,
          .released = &block.control->released.word,
          .slots = block.slots};
}

Result<bool> Connection::Connect() {
  if (rings_ != nullptr) return true;
  std::vector<cpu::RingView> views;
  for (int member = 0; member < static_cast<int>(blocks_.size()); ++member) {
    if (blocks_[member].control == nullptr) {
      CXL_ASSIGN_OR_RETURN(const bool found, Find(member));
      if (!found) return false;
    }
    views.push_back(View(member));
  }
  rings_ = std::make_unique<cpu::Rings>(std::move(views), group_.self,
                                        geometry_.num_slots);
  return true;
}

Status Connection::FollowMoves() {
  for (int member = 0; member < static_cast<int>(blocks_.size()); ++member) {
    if (blocks_[member].control == nullptr || !blocks_[member].Moved())
      continue;
    CXL_ASSIGN_OR_RETURN(const bool found, Find(member));
    if (found && rings_ != nullptr) rings_->Replace(member, View(member));
  }
  return OkStatus();
}

std::vector<int> Connection::Missing() const {
  std::vector<int> missing;
  for (size_t member = 0; member < blocks_.size(); ++member)
    if (blocks_[member].control == nullptr)
      missing.push_back(static_cast<int>(member));
  return missing;
}

}  // namespace jax_cxl::comm
