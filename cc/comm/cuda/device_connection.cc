#include "cc/comm/cuda/device_connection.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "cc/comm/directory.h"
#include "cc/engine/cuda/copy_engine.h"
#include "cc/plan/gpu_geometry.h"

namespace jax_cxl::comm {
namespace {

// A channel of GPUs is another one than that of the same ranks' hosts.
constexpr uint64_t kDeviceKey = 0x6375646100000000;

// The copy engines' best, where the pool has space for it.
constexpr uint64_t kMaxSlotBytes = uint64_t{4} << 20;
constexpr uint64_t kGroupsPerArena = 7;
// Where the pool is emulated in memory, larger rings of all members together do
// not stay in the processor's cache: what kernels use of their slots of a
// round, and how many slots the copy engines of more than two members use.
constexpr uint64_t kKernelRoundBytes = uint64_t{4} << 20;
constexpr int kFewSlots = 4;

// At least: every block has something of each member's part.
uint64_t MinSlotBytes(const DeviceOptions& options, int members) {
  return std::max(uint64_t{64} << 10,
                  std::bit_ceil(plan::kSlotAlignment * options.shape.blocks *
                                static_cast<uint64_t>(members)));
}

plan::Geometry ChooseGeometry(const pool::Pool& pool,
                              const DeviceOptions& options, int members) {
  plan::Geometry geometry = plan::GpuGeometry(pool.num_extents(), members);
  geometry.device_parts = 1;  // copy engines move whole parts of slots
  if (options.num_slots > 0) geometry.num_slots = options.num_slots;
  uint64_t arena = 0;
  for (int extent = 0; extent < pool.num_extents(); ++extent)
    arena += pool.arena(extent, 0).bytes;
  geometry.slot_bytes =
      options.slot_bytes > 0
          ? options.slot_bytes
          : std::clamp(
                std::bit_floor(arena / kGroupsPerArena / geometry.num_slots),
                MinSlotBytes(options, members), kMaxSlotBytes);
  return geometry;
}

}  // namespace

DeviceConnection::DeviceConnection(pool::Pool* pool, const Peers* peers,
                                   const DeviceOptions& options, Group group)
    : pool_(pool),
      peers_(peers),
      group_(std::move(group)),
      key_(HashGroup(group_.members) ^ kDeviceKey),
      doorbells_(pool->coherence(), pool->epoch()),
      geometry_(ChooseGeometry(*pool, options,
                               static_cast<int>(group_.members.size()))),
      members_(group_.members.size()),
      controls_(group_.members.size()) {
  const int size = static_cast<int>(members_.size());
  kernel_geometry_ = geometry_;
  kernel_geometry_.slot_bytes = std::min(
      geometry_.slot_bytes,
      options.kernel_slot_bytes > 0
          ? options.kernel_slot_bytes
          : std::max(std::bit_floor(kKernelRoundBytes / members_.size()),
                     MinSlotBytes(options, size)));
  stripes_ =
      plan::GpuStripes(kernel_geometry_.slot_bytes, geometry_.num_devices, size,
                       options.shape.blocks);
  geometry_.part_alignment = stripes_.period();
  kernel_geometry_.part_alignment = stripes_.period();
  if (stripes_.slot_step > 0)
    kernel_geometry_.device_parts = static_cast<int>(stripes_.num_blocks);
  if (geometry_.num_devices > 1) {
    kernel_geometry_.min_chunk_bytes = options.kernel_min_striped_bytes;
    return;
  }
  kernel_geometry_.min_chunk_bytes = options.kernel_min_chunk_bytes;
  // Nothing of a call by the one is left when a call by the other begins.
  if (size > 2) geometry_.num_slots = std::min(geometry_.num_slots, kFewSlots);
}

Status DeviceConnection::Open(Arena* arena, Recorder* recorder) {
  const int size = static_cast<int>(members_.size());
  if (size > cuda::kMaxMembers)
    return Error(Code::kUnimplemented, "a group of GPUs has at most ",
                 cuda::kMaxMembers, " members, this one has ", size,
                 ": communicate along several mesh axes in turn");
  plan::Geometry slots = geometry_;
  slots.num_slots = kernel_geometry_.num_slots;
  CXL_ASSIGN_OR_RETURN(place_,
                       AllocateChannel(*pool_, arena, group_, key_, slots,
                                       sizeof(cuda::DeviceControl)));
  InitializeWords();
  CXL_ASSIGN_OR_RETURN(
      const int entry,
      EnterChannel(pool_, doorbells_, group_.members[group_.self], place_));
  recorder->OpenGroup(entry, group_.members);
  return OkStatus();
}

// Streams compare words as numbers that wrap around. A word without this job's
// epoch in it could pass for one that is far ahead.
void DeviceConnection::InitializeWords() {
  auto* control = reinterpret_cast<cuda::DeviceControl*>(
      pool_->At(place_.control, sizeof(cuda::DeviceControl)));
  for (int line = 0; line < cuda::CopyEngine::kLines; ++line) {
    doorbells_.Ring(&control->send[line].published, 0);
    doorbells_.Ring(&control->released[line].word, 0);
  }
  doorbells_.Ring(&control->ended.word, 0);
}

Result<bool> DeviceConnection::Connect() {
  for (size_t member = 0; member < members_.size(); ++member) {
    if (controls_[member] != nullptr) continue;
    const int rank = group_.members[member];
    const std::optional<pool::ChannelPlace> place =
        FindChannel(*pool_, doorbells_, rank, key_);
    if (!place) return false;
    CXL_ASSIGN_OR_RETURN(
        const ChannelMemory memory,
        LocateChannel(*pool_, *place, place_, sizeof(cuda::DeviceControl),
                      peers_->Name(rank)));
    auto* control = reinterpret_cast<cuda::DeviceControl*>(memory.control);
    cuda::MemberView& view = members_[member];
    view.send = control->send;
    view.released = control->released;
    view.ended = &control->ended.word;
    view.flagged = &control->flagged;
    std::ranges::copy(memory.slots, view.slots);
    controls_[member] = control;
  }
  return true;
}

int DeviceConnection::Missing() const {
  for (size_t member = 0; member < controls_.size(); ++member)
    if (controls_[member] == nullptr) return static_cast<int>(member);
  return -1;
}

}  // namespace jax_cxl::comm
