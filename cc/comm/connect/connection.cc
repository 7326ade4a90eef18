#include "cc/comm/connect/connection.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <utility>

namespace jax_cxl::comm {
namespace {

constexpr uint64_t kMinSlotBytes = uint64_t{4} << 10;
// A rank is a member of a few groups: the world, one for each mesh axis, ...
constexpr uint64_t kGroupsPerArena = 4;
constexpr uint64_t kMinPayloadBytes = plan::kSlotAlignment;
// The submissions of a channel take at most this fraction of a rank's arena on
// a pool device.
constexpr uint64_t kSubmissionsPerArena = 16;

// Depends on the pool and the options alone, so that all ranks choose the same.
plan::Geometry ChooseGeometry(const pool::Pool& pool, const Options& options) {
  plan::Geometry geometry;
  geometry.num_slots =
      options.num_slots > 0
          ? options.num_slots
          // Two slots per device, so that half of the ring is filled while the
          // other half is read.
          : std::clamp(2 * pool.num_extents(), options.tuning.num_slots,
                       pool::kMaxSlots);
  geometry.num_devices = pool.num_extents();
  geometry.all_read_bytes = options.tuning.all_read_bytes;
  uint64_t arena = 0;
  for (int extent = 0; extent < pool.num_extents(); ++extent)
    arena += pool.arena(extent, 0).bytes;
  geometry.slot_bytes =
      options.slot_bytes > 0
          ? options.slot_bytes
          : std::clamp(std::bit_floor(arena / (kGroupsPerArena + 1) /
                                      geometry.num_slots),
                       kMinSlotBytes, options.tuning.slot_bytes);
  return geometry;
}

uint64_t ChoosePayloadBytes(const pool::Pool& pool, uint64_t most) {
  uint64_t arena = std::numeric_limits<uint64_t>::max();
  for (int extent = 0; extent < pool.num_extents(); ++extent)
    arena = std::min(arena, pool.arena(extent, 0).bytes);
  return std::clamp(
      std::bit_floor(arena / kSubmissionsPerArena / pool::kCallRing),
      kMinPayloadBytes, most);
}

}  // namespace

Connection::Connection(pool::Pool* pool, const Peers* peers,
                       const Options& options, Group group)
    : pool_(pool),
      peers_(peers),
      group_(std::move(group)),
      key_(HashGroup(group_.members)),
      doorbells_(pool->coherence(), pool->epoch(), &pool->guard()),
      geometry_(ChooseGeometry(*pool, options)),
      payload_bytes_(ChoosePayloadBytes(*pool, options.tuning.inline_bytes)),
      control_bytes_(pool::ControlBytes(static_cast<int>(group_.members.size()),
                                        payload_bytes_)),
      found_(group_.members.size()) {}

Status Connection::Open(Arena* arena, Recorder* recorder) {
  CXL_ASSIGN_OR_RETURN(place_, AllocateChannel(*pool_, arena, group_, key_,
                                               geometry_, control_bytes_));
  place_.payload_bytes = static_cast<uint16_t>(payload_bytes_);
  CXL_ASSIGN_OR_RETURN(
      int entry,
      EnterChannel(pool_, doorbells_, group_.members[group_.self], place_));
  recorder->OpenGroup(entry, group_.members);
  return OkStatus();
}

Result<bool> Connection::Connect() {
  if (rings_ != nullptr) return true;
  for (size_t member = 0; member < found_.size(); ++member) {
    if (found_[member]) continue;
    const int rank = group_.members[member];
    const std::optional<pool::ChannelPlace> place =
        FindChannel(*pool_, doorbells_, rank, key_);
    if (!place) return false;
    CXL_ASSIGN_OR_RETURN(found_[member],
                         LocateChannel(*pool_, *place, place_, control_bytes_,
                                       peers_->Name(rank)));
  }
  std::vector<cpu::RingView> views;
  for (const std::optional<ChannelMemory>& memory : found_) {
    auto* block = reinterpret_cast<pool::ControlBlock*>(memory->control);
    blocks_.push_back(block);
    views.push_back(
        {&block->published.word, &block->released.word, memory->slots});
  }
  rings_ = std::make_unique<cpu::Rings>(doorbells_, std::move(views),
                                        group_.self, geometry_.num_slots);
  return true;
}

std::vector<int> Connection::Missing() const {
  std::vector<int> missing;
  for (size_t member = 0; member < found_.size(); ++member)
    if (!found_[member]) missing.push_back(static_cast<int>(member));
  return missing;
}

}  // namespace jax_cxl::comm
