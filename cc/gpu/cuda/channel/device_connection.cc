#include "cc/gpu/cuda/channel/device_connection.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "cc/engine/cuda/copy_engine.h"
#include "cc/plan/gpu_geometry.h"

namespace jax_cxl::comm {
namespace {

// Distinguishes a channel between GPUs from the channel between the hosts of
// the same ranks.
constexpr uint64_t kDeviceKey = 0x6375646100000000;

// The best slot size for copy engines, if the pool has space for it.
constexpr uint64_t kMaxSlotBytes = uint64_t{4} << 20;
constexpr uint64_t kGroupsPerArena = 7;
// In a round, kernels use at most kKernelRoundBytes. Between more than two
// members, copy engines use at most kFewSlots slots. With these limits, the
// rings of all members stay in the processor's cache if ordinary memory
// emulates the pool.
constexpr uint64_t kKernelRoundBytes = uint64_t{4} << 20;
constexpr int kFewSlots = 4;
// In a pool of several devices, blocks are not cut into smaller chunks than
// this for kernels, because a round for a smaller chunk is not worthwhile.
constexpr uint64_t kMinStripedChunkBytes = uint64_t{1} << 20;

// A slot has a part for each member, and all thread blocks share each part.
// Returns the smallest slot size at which every block gets a piece of every
// part.
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

uint64_t KernelSlotBytes(const DeviceOptions& options, int members) {
  return std::max(
      std::bit_floor(kKernelRoundBytes / static_cast<uint64_t>(members)),
      MinSlotBytes(options, members));
}

DeviceConnection::DeviceConnection(pool::Pool* pool, const Peers* peers,
                                   const DeviceOptions& options, Group group)
    : pool_(pool),
      peers_(peers),
      group_(std::move(group)),
      key_(HashGroup(group_.members) ^ kDeviceKey ^ options.channel_salt),
      doorbells_(pool->coherence(), pool->epoch()),
      flagged_slot_bytes_(static_cast<uint32_t>(options.flagged_slot_bytes)),
      control_bytes_(cuda::DeviceControlBytes(options.flagged_slot_bytes)),
      found_(group_.members.size()),
      members_(group_.members.size()),
      controls_(group_.members.size()) {
  const int size = static_cast<int>(members_.size());
  plan::Geometry slots = ChooseGeometry(*pool, options, size);
  plan::Geometry kernels = slots;
  kernels.slot_bytes =
      std::min(slots.slot_bytes, options.kernel_slot_bytes > 0
                                     ? options.kernel_slot_bytes
                                     : KernelSlotBytes(options, size));
  stripes_ = plan::GpuStripes(kernels.slot_bytes, slots.num_devices, size,
                              options.shape.blocks);
  slots.part_alignment = stripes_.period();
  kernels.part_alignment = stripes_.period();
  const bool one_device = slots.num_devices == 1;
  if (one_device) slots.min_chunk_bytes = options.copy_min_chunk_bytes;
  kernels.min_chunk_bytes =
      one_device ? options.kernel_min_chunk_bytes : kMinStripedChunkBytes;
  if (stripes_.slot_step > 0)
    kernels.device_parts = static_cast<int>(stripes_.num_blocks);

  if (one_device && size > 2)
    slots.num_slots = std::min(slots.num_slots, kFewSlots);
  geometries_ = {kernels, slots};
}

Status DeviceConnection::Open(Arena* arena, uint64_t incarnation) {
  const int size = static_cast<int>(members_.size());
  if (size > cuda::kMaxMembers)
    return Error(Code::kUnimplemented, "a group of GPUs can have at most ",
                 cuda::kMaxMembers, " members, but this one has ", size,
                 ": communicate along several mesh axes in turn");
  plan::Geometry slots = geometry(SlotUse::kCopies);
  slots.num_slots = geometry(SlotUse::kKernels).num_slots;
  CXL_ASSIGN_OR_RETURN(place_, AllocateChannel(*pool_, arena, group_, key_,
                                               slots, control_bytes_));
  place_.first = incarnation;
  const int rank = group_.members[group_.self];
  const Status reserved =
      pool_->Reserve(place_.control, offsetof(cuda::DeviceControl, journal));
  if (!reserved.ok()) {
    FreeChannel(*pool_, arena, rank, place_, control_bytes_);
    return reserved;
  }
  // Streams compare words as numbers that wrap around. So all words must start
  // with this job's epoch. Otherwise an old word could look like a word that is
  // far ahead.
  auto* control = reinterpret_cast<cuda::DeviceControl*>(
      pool_->At(place_.control, sizeof(cuda::DeviceControl)));
  for (int index = 0; index < cuda::CopyEngine::kPipelines; ++index) {
    doorbells_.Ring(&control->send[index].published, 0);
    doorbells_.Ring(&control->released[index].word, 0);
  }
  doorbells_.Ring(&control->ended.word, 0);
  const Result<int> entry = EnterChannel(pool_, doorbells_, group_, place_);
  if (!entry.ok()) {
    FreeChannel(*pool_, arena, rank, place_, control_bytes_);
    return entry.status();
  }
  entry_ = *entry;
  return OkStatus();
}

void DeviceConnection::Close(Arena* arena) {
  const int rank = group_.members[group_.self];
  CloseChannel(pool_, doorbells_, rank, entry_);
  FreeChannel(*pool_, arena, rank, place_, control_bytes_);
}

Result<bool> DeviceConnection::Connect() {
  for (size_t member = 0; member < members_.size(); ++member) {
    if (controls_[member] != nullptr) continue;
    const int rank = group_.members[member];
    CXL_ASSIGN_OR_RETURN(const std::optional<FoundChannel> found,
                         FindChannel(*pool_, doorbells_, rank, place_,
                                     control_bytes_, peers_->Name(rank)));
    // Do not take a part of an earlier incarnation of the group. The member
    // that published this part does not know yet that the earlier incarnation
    // has ended.
    if (!found || found->first != place_.first) return false;
    auto* control = reinterpret_cast<cuda::DeviceControl*>(found->control);
    cuda::MemberView& view = members_[member];
    view.send = control->send;
    view.released = control->released;
    view.ended = &control->ended.word;
    view.flagged = &control->flagged;
    std::ranges::copy(found->slots, view.slots);
    found_[member] = *found;
    controls_[member] = control;
  }
  return true;
}

std::vector<TakingBack::Member> DeviceConnection::Entries() const {
  std::vector<TakingBack::Member> entries;
  for (int member = 0; member < static_cast<int>(members_.size()); ++member) {
    const FoundChannel& found = found_[member];
    const bool self = member == group_.self;
    entries.push_back({.words = &controls_[member]->host,
                       .entry = self ? nullptr : found.entry,
                       .version = found.version});
  }
  return entries;
}

uint64_t DeviceConnection::Progress(int words) const {
  const cuda::DeviceControl& control = *controls_[group_.self];
  uint64_t progress = doorbells_.Read(&control.ended.word) +
                      doorbells_.Read(&control.flagged.released);
  for (int index = 0; index < words; ++index)
    progress += doorbells_.Read(&control.send[index].published) +
                doorbells_.Read(&control.released[index].word);
  return progress;
}

void DeviceConnection::Mirror(cuda::MirrorWords* mirror) {
  for (size_t member = 0; member < members_.size(); ++member)
    members_[member] = cuda::Mirrored(members_[member], &mirror[member]);
}

std::vector<int> DeviceConnection::Missing() const {
  std::vector<int> missing;
  for (size_t member = 0; member < controls_.size(); ++member)
    if (controls_[member] == nullptr)
      missing.push_back(static_cast<int>(member));
  return missing;
}

}  // namespace jax_cxl::comm
