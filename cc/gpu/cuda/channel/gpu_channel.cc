#include "cc/gpu/cuda/channel/gpu_channel.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "cc/engine/cuda/copy_engine.h"
#include "cc/engine/gpu_plan/flagged_ring.h"
#include "cc/plan/gpu_geometry.h"
#include "cc/plan/planners/make_plan.h"
#include "cc/plan/slices.h"

namespace jax_cxl::comm {

Status EarlierFailure() {
  return Error(Code::kFailedPrecondition,
               "an earlier collective of this process has failed; look for its "
               "error, and start all processes again");
}

GpuChannel::GpuChannel(pool::Pool* pool, Peers* peers,
                       const DeviceOptions& options, Group group,
                       PlanStore* plans, Relay* relay)
    : pool_(pool),
      peers_(peers),
      options_(options),
      connection_(pool, peers, options, std::move(group)),
      plans_(plans),
      relay_(relay),
      waits_(pool, peers, options, connection_.group()) {}

Status GpuChannel::Allocate(uint64_t staging_bytes) {
  if (buffers_.members == nullptr) {
    const size_t size = connection_.members().size();
    CXL_ASSIGN_OR_RETURN(buffers_.members,
                         AllocateDevice<cuda::MemberView>(size));
    CXL_ASSIGN_OR_RETURN(buffers_.scratch,
                         AllocateDevice<cuda::DeviceScratch>(1));
    if (staging_bytes > 0) {
      CXL_ASSIGN_OR_RETURN(buffers_.staging,
                           AllocateDevice<std::byte>(staging_bytes));
    }
    CXL_ASSIGN_OR_RETURN(buffers_.status,
                         AllocatePinned<cuda::DeviceStatus>(1));
    if (relay_ != nullptr) {
      CXL_ASSIGN_OR_RETURN(buffers_.mirror,
                           AllocatePinned<cuda::MirrorWords>(size));
    }
  }
  status() = {};
  cuda::DeviceScratch scratch = {};
  scratch.flagged_released = scratch.position.flagged_rounds =
      options_.first_flagged_round;
  return CopyToDevice(buffers_.scratch.get(), &scratch, 1);
}

Status GpuChannel::OpenPart(Arena* arena, Recorder* recorder,
                            uint64_t incarnation) {
  CXL_RETURN_IF_ERROR(connection_.Open(arena, incarnation));
  recorded_.emplace(recorder, connection_.key());
  return OkStatus();
}

Status GpuChannel::FinishConnecting(DeviceJournal* device_journal) {
  const pool::Doorbells& doorbells = connection_.doorbells();
  const int self = connection_.group().self;
  journal_ = std::make_unique<Journal>(pool_, connection_.group(),
                                       connection_.controls());
  std::vector<cuda::FlaggedControl*> rings;
  for (cuda::DeviceControl* control : connection_.controls())
    rings.push_back(&control->flagged);
  rings_.emplace(doorbells, std::move(rings), self,
                 connection_.flagged_slot_bytes());
  rings_->DropPeers();
  if (relay_ != nullptr) {
    // The device uses the words in the mirror instead of those in the pool, and
    // the relay passes them on.
    std::vector<cuda::MirrorWords*> mirror;
    for (int member = 0; member < members_count(); ++member)
      mirror.push_back(&buffers_.mirror[member]);
    auto channel_relay = std::make_unique<ChannelRelay>(
        doorbells, !options_.gpu_writes_memory, connection_.controls(),
        std::move(mirror), *rings_, self);
    if (device_journal != nullptr) channel_relay->Follow(device_journal);
    connection_.Mirror(buffers_.mirror.get());
    {
      std::lock_guard lock(mutex_);
      channel_relay_ = std::move(channel_relay);
      if (Read(status().abort) != 0) channel_relay_->Stop();
    }
    relay_->Add(channel_relay_.get());
  }
  CXL_RETURN_IF_ERROR(CopyToDevice(buffers_.members.get(),
                                   connection_.members().data(),
                                   connection_.members().size()));
  connected_ = true;
  return OkStatus();
}

void GpuChannel::Abort() {
  if (buffers_.status == nullptr) return;
  std::atomic_ref(status().abort).store(1, std::memory_order_release);
  std::lock_guard lock(mutex_);
  if (channel_relay_ != nullptr) channel_relay_->Stop();
}

// --- plans and calls ---

std::string GpuChannel::PlanKey(const pool::CallDescriptor& descriptor) const {
  const uint64_t channel = connection_.key();
  std::string key(reinterpret_cast<const char*>(&channel), sizeof(channel));
  key.append(reinterpret_cast<const char*>(&descriptor), sizeof(descriptor));
  return key;
}

Result<std::optional<cuda::GpuPlan>> GpuChannel::MakeFlaggedPlan(
    const plan::Request& request) const {
  const uint64_t slot_bytes = options_.flagged_slot_bytes;
  if (plan::MovesRows(request.op) || slot_bytes == 0 ||
      !plan::IsFlagged(request, plan::kFlaggedSlotsAt55GBps * slot_bytes))
    return std::optional<cuda::GpuPlan>();
  CXL_ASSIGN_OR_RETURN(
      const plan::Plan plan,
      plan::MakePlan(request,
                     plan::FlaggedGeometry(request.num_ranks, slot_bytes)));
  CXL_ASSIGN_OR_RETURN(
      cuda::GpuPlan gpu_plan,
      cuda::MakeGpuPlan(plan, request.rank, cuda::Stripes{1, 16}));
  if (!cuda::flagged::Fits(gpu_plan)) return std::optional<cuda::GpuPlan>();
  return std::optional(std::move(gpu_plan));
}

Result<cuda::GpuPlan> GpuChannel::MakeSlotPlan(const plan::Request& request,
                                               SlotUse use) const {
  plan::Geometry geometry = connection_.geometry(use);
  if (use == SlotUse::kKernels && geometry.num_devices == 1)
    geometry.min_chunk_bytes = plan::KernelMinChunkBytes(request, geometry);
  CXL_ASSIGN_OR_RETURN(const plan::Plan plan,
                       plan::MakePlan(request, geometry));
  return cuda::MakeGpuPlan(plan, request.rank, connection_.stripes());
}

cuda::DeviceCall GpuChannel::MakeDeviceCall(const Call& call,
                                            const StoredPlan& stored,
                                            SlotUse use) const {
  const cuda::GpuPlan& gpu_plan = stored.gpu_plan;
  cuda::DeviceCall device;
  device.sending = stored.sending;
  device.receiving = stored.receiving;
  device.num_sending = static_cast<uint32_t>(gpu_plan.sending.size());
  device.num_receiving = static_cast<uint32_t>(gpu_plan.receiving.size());
  device.members = buffers_.members.get();
  device.num_members = members_count();
  device.self = connection_.group().self;
  device.num_slots = static_cast<uint32_t>(connection_.geometry(use).num_slots);
  device.unit_bytes = connection_.stripes().unit_bytes;
  device.slot_step = connection_.stripes().slot_step;
  device.flagged_slot_bytes = connection_.flagged_slot_bytes();
  device.rounds = gpu_plan.rounds;
  device.rounds_ahead =
      RoundsAhead(call.request, gpu_plan.rounds, gpu_plan.bytes_published);
  device.epoch = pool_->epoch();
  device.input = call.input;
  device.output = call.output;
  device.dtype = call.dtype;
  device.reduce_op = call.reduce_op;
  device.status = buffers_.status.get();
  device.scratch = buffers_.scratch.get();
  return device;
}

// --- checks ---

DeviceWait GpuChannel::WaitOf(const Call& call, uint64_t place) const {
  // In the pool, a relay rings only the first word for publications and the
  // first word for releases.
  const int words = relay_ != nullptr
                        ? 1
                        : std::max(static_cast<int>(options_.shape.blocks),
                                   cuda::CopyEngine::kPipelines);
  const uint64_t started = Read(status().started);
  const auto said = static_cast<int>(Read(status().waiting_for));
  return {.call = &call,
          .begun = started > place,
          .missing = journal_->Missing(place),
          .at_work = {},
          .waiting_for = said > members_count() ? -1 : said - 1,
          .progress =
              Read(status().finished) + started + connection_.Progress(words)};
}

Status GpuChannel::CheckWait(const DeviceWait& wait, uint64_t place,
                             uint64_t written, Clock::time_point now) {
  if (wait.begun) {
    const int member = wait.member();
    std::lock_guard lock(mutex_);
    recorded_->Wait(place,
                    member < 0 ? -1 : connection_.group().members[member]);
  }
  const auto fault = static_cast<cuda::DeviceFault>(Read(status().fault));
  // Every member finds a fault in the slices itself. A peer that was faster may
  // have given up by now. So report this fault, and not that the peer has given
  // up.
  if (fault == cuda::DeviceFault::kSlices)
    return plan::SliceError(status().slice_fault);
  CXL_RETURN_IF_ERROR(waits_.Check(wait, now));

  const int member = static_cast<int>(
      std::min<uint64_t>(Read(status().fault_member), members_count() - 1));
  if (fault == cuda::DeviceFault::kMismatch) {
    // The device reports only that a call differs. The journals describe the
    // first call that differs. So compare them again: they may have grown since
    // the last comparison.
    CXL_RETURN_IF_ERROR(journal_->Compare(written));
    return waits_.Mismatch(*wait.call, member);
  }
  if (fault == cuda::DeviceFault::kTimeout)
    return waits_.Timeout(*wait.call, member);
  return OkStatus();
}

}  // namespace jax_cxl::comm
