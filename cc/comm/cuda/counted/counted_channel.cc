#include "cc/comm/cuda/counted/counted_channel.h"

#include <algorithm>
#include <utility>

#include "cc/base/text.h"
#include "cc/comm/cuda/device_channel_reading.h"
#include "cc/engine/cuda/flagged/flagged.h"
#include "cc/engine/gpu_plan/flagged_ring.h"
#include "cc/engine/gpu_plan/in_place.h"
#include "cc/plan/gpu_geometry.h"
#include "cc/plan/planners/make_plan.h"

namespace jax_cxl::comm {
namespace {

Options TimesOf(const DeviceOptions& device) {
  Options options;
  options.warn_after_s = device.warn_after_s;
  options.timeout_s = device.timeout_s;
  return options;
}

pool::CallDescriptor DescribeCounted(const Call& call, uint32_t divisor) {
  pool::CallDescriptor descriptor = Describe(call);
  descriptor.details += divisor;  // a mean is another call than a sum
  return descriptor;
}

cuda::JournalEntry RecordOf(const Call& call, uint32_t divisor) {
  cuda::JournalEntry record = {};
  record.descriptor = DescribeCounted(call, divisor);
  call.name.copy(record.name, sizeof(record.name) - 1);
  return record;
}

// Where the output begins in the input, in bytes. Returns nothing if they do
// not overlap.
std::optional<int64_t> ShiftInPlace(const Call& call) {
  const int64_t shift = call.output - call.input;
  const auto before = static_cast<int64_t>(plan::OutputBytes(call.request));
  const auto behind = static_cast<int64_t>(plan::InputBytes(call.request));
  if (shift <= -before || shift >= behind) return std::nullopt;
  return shift;
}

}  // namespace

CountedChannel::CountedChannel(pool::Pool* pool, Peers* peers,
                               const DeviceOptions& options, Group group,
                               CountedPlans* plans)
    : pool_(pool),
      peers_(peers),
      options_(options),
      connection_(pool, peers, options, std::move(group)),
      plans_(plans),
      waits_(pool, peers, TimesOf(options), connection_.group()) {}

Status CountedChannel::Open(Arena* arena, Recorder* recorder) {
  CXL_ASSIGN_OR_RETURN(scratch_, AllocateDevice<cuda::DeviceScratch>(1));
  CXL_ASSIGN_OR_RETURN(status_, AllocatePinned<cuda::DeviceStatus>(1));
  CXL_RETURN_IF_ERROR(
      cuda::CudaStatus(cudaMemcpy(&scratch_[0].position.flagged_rounds,
                                  &options_.first_flagged_round,
                                  sizeof(uint64_t), cudaMemcpyHostToDevice),
                       "copying a channel to the device"));
  CXL_RETURN_IF_ERROR(cuda::CudaStatus(
      cudaMemcpy(&scratch_[0].flagged_released, &options_.first_flagged_round,
                 sizeof(uint64_t), cudaMemcpyHostToDevice),
      "copying a channel to the device"));
  // Peers may find this part from here on.
  CXL_RETURN_IF_ERROR(connection_.Open(arena, recorder));
  recorded_.emplace(recorder, connection_.key());
  return OkStatus();
}

Result<bool> CountedChannel::TryConnect() {
  if (connected_) return true;
  CXL_ASSIGN_OR_RETURN(const bool all, connection_.Connect());
  if (!all) {
    for (int member : connection_.Missing()) {
      const int rank = connection_.group().members[member];
      CXL_RETURN_IF_ERROR(peers_->Alive(rank));
      CXL_RETURN_IF_ERROR(peers_->GaveUp(rank));
    }
    return false;
  }
  CXL_RETURN_IF_ERROR(FinishConnecting());
  return true;
}

Status CountedChannel::FinishConnecting() {
  const std::vector<cuda::MemberView>& members = connection_.members();
  std::vector<cuda::DeviceControl*> controls;
  for (size_t member = 0; member < members.size(); ++member)
    controls.push_back(connection_.control(static_cast<int>(member)));
  journal_ = std::make_unique<Journal>(pool_, connection_.group(),
                                       std::move(controls));
  CXL_ASSIGN_OR_RETURN(members_,
                       AllocateDevice<cuda::MemberView>(members.size()));
  CXL_RETURN_IF_ERROR(
      cuda::CudaStatus(cudaMemcpy(members_.get(), members.data(),
                                  members.size() * sizeof(cuda::MemberView),
                                  cudaMemcpyHostToDevice),
                       "copying a channel to the device"));
  connected_ = true;
  return OkStatus();
}

Result<const CountedPlan*> CountedChannel::PlanFor(const Call& call,
                                                   uint32_t divisor) {
  const cuda::JournalEntry record = RecordOf(call, divisor);
  const std::optional<int64_t> shift = ShiftInPlace(call);
  const uint64_t channel = connection_.key();
  std::string key(reinterpret_cast<const char*>(&channel), sizeof(channel));
  key.append(reinterpret_cast<const char*>(&record.descriptor),
             sizeof(record.descriptor));
  if (shift) key.append(reinterpret_cast<const char*>(&*shift), sizeof(*shift));
  key.append(call.name);
  if (const CountedPlan* found = plans_->Find(key)) return found;
  const plan::Request& request = call.request;
  // In kernels with flags, each thread puts a part of the input before it
  // writes the same part of the output, except in an all-to-all.
  const bool safe = !shift || request.op != plan::Op::kAllToAll;
  if (safe && options_.flagged_bytes > 0 &&
      plan::IsFlagged(request, options_.flagged_bytes)) {
    CXL_ASSIGN_OR_RETURN(
        const plan::Plan plan,
        plan::MakePlan(request, plan::FlaggedGeometry(request.num_ranks)));
    CXL_ASSIGN_OR_RETURN(
        const cuda::GpuPlan gpu_plan,
        cuda::MakeGpuPlan(plan, request.rank, cuda::Stripes{1, 16}));
    if (cuda::flagged::Fits(gpu_plan))
      return plans_->Store(key, gpu_plan, true, record);
  }
  CXL_ASSIGN_OR_RETURN(
      const plan::Plan plan,
      plan::MakePlan(request, connection_.geometry(SlotUse::kKernels)));
  CXL_ASSIGN_OR_RETURN(
      cuda::GpuPlan gpu_plan,
      cuda::MakeGpuPlan(plan, request.rank, connection_.stripes()));
  if (shift)
    CXL_RETURN_IF_ERROR(
        cuda::OrderInPlace(*shift, connection_.stripes(), &gpu_plan));
  return plans_->Store(key, gpu_plan, false, record);
}

Result<CountedCall> CountedChannel::Prepare(const Call& call,
                                            uint32_t divisor) {
  // Kernels that put one round ahead keep the path to the peer short, and two
  // fill the link (DeviceChannel does the same).
  constexpr uint64_t kLongRoundBytes = uint64_t{512} << 10;
  CXL_ASSIGN_OR_RETURN(const CountedPlan* plan, PlanFor(call, divisor));
  const StoredPlan& stored = plan->plan;
  CountedCall counted;
  counted.plan = plan;
  cuda::DeviceCall& device = counted.device;
  device.sending = stored.sending;
  device.receiving = stored.receiving;
  device.num_sending = stored.num_sending;
  device.num_receiving = stored.num_receiving;
  device.members = members_.get();
  device.num_members = static_cast<int32_t>(connection_.members().size());
  device.self = connection_.group().self;
  device.num_slots =
      static_cast<uint32_t>(connection_.geometry(SlotUse::kKernels).num_slots);
  device.unit_bytes = connection_.stripes().unit_bytes;
  device.slot_step = connection_.stripes().slot_step;
  device.rounds = stored.rounds;
  device.rounds_ahead =
      device.num_members == 2 &&
              stored.bytes_published >= stored.rounds * kLongRoundBytes
          ? 1
          : 2;
  device.epoch = pool_->epoch();
  device.input = call.input;
  device.output = call.output;
  device.dtype = call.dtype;
  device.reduce_op = call.reduce_op;
  device.status = status_.get();
  device.scratch = scratch_.get();
  device.timeout_ns = ~uint64_t{0};  // the host decides
  device.divisor = divisor;
  device.descriptor_hash = plan->descriptor_hash;
  device.record = plan->record;
  device.journal = own_control()->journal;
  return counted;
}

cudaError_t CountedChannel::Launch(const CountedCall& call,
                                   cudaStream_t stream) const {
  const StoredPlan& stored = call.plan->plan;
  if (!stored.flagged)
    return cuda::LaunchCounted({&call.device, 1}, options_.shape, stream);
  return cuda::LaunchFlagged(
      call.device,
      {stored.host_sending, stored.host_receiving, connection_.members().data(),
       stored.flagged_blocks},
      stream);
}

// --- the checking thread ---

// Returns a call as this member's journal describes it.
Call CountedChannel::CallAt(uint64_t place) const {
  const cuda::JournalEntry& entry =
      own_control()->journal[place % cuda::kJournal];
  Call call;
  call.name = PrintableText(entry.name);
  call.request.op = static_cast<plan::Op>(entry.descriptor.op);
  call.request.count = entry.descriptor.count;
  call.request.root = entry.descriptor.root;
  call.request.num_ranks = static_cast<int>(connection_.members().size());
  call.request.rank = connection_.group().self;
  call.dtype = static_cast<DType>(entry.descriptor.dtype);
  call.request.element_bytes = static_cast<uint32_t>(DTypeBytes(call.dtype));
  call.reduce_op = static_cast<ReduceOp>(entry.descriptor.reduce_op);
  return call;
}

// Records the calls that the device has started since the last check. A journal
// has only the last ones.
void CountedChannel::RecordStarted(uint64_t finished) {
  constexpr uint64_t kMost = cuda::kJournal / 2;
  const pool::Doorbells& doorbells = connection_.doorbells();
  const uint64_t least = finished > kMost ? finished - kMost : 0;
  if (written_ < least) {
    written_ = least;
    recorded_->SkipTo(least);
  }
  const cuda::JournalEntry* journal = own_control()->journal;
  for (;; ++written_) {
    const uint64_t ready =
        doorbells.Read(&journal[written_ % cuda::kJournal].ready);
    if (ready != written_ + 1) return;
    Call call = CallAt(written_);
    recorded_->Record(written_, &call);
    if (written_ < finished) continue;
    oldest_ = std::move(call);
    oldest_place_ = written_;
  }
}

Status CountedChannel::Check(Clock::time_point now) {
  if (!connected_) return OkStatus();
  const uint64_t finished = Read(status_.get()->finished);
  RecordStarted(finished);
  Status status = CheckCalls(now, finished);
  recorded_->Advance(std::min(journal_->compared_by_all(), written_), finished);
  if (!status.ok()) recorded_->Fail(finished, status);
  return status;
}

Status CountedChannel::CheckCalls(Clock::time_point now, uint64_t finished) {
  CXL_RETURN_IF_ERROR(journal_->Compare(written_));
  if (!oldest_ || oldest_place_ < finished) return OkStatus();
  cuda::DeviceStatus& status = *status_.get();
  const int size = static_cast<int>(connection_.members().size());
  DeviceWait wait;
  wait.call = &*oldest_;
  wait.begun = true;
  wait.missing = journal_->Missing(oldest_place_);
  for (int member = 0; member < size; ++member)
    if (member != connection_.group().self) wait.at_work.push_back(member);
  wait.progress = ProgressOf(finished, Read(status.started));
  const auto said = static_cast<int>(Read(status.waiting_for));
  wait.waiting_for = said > size ? -1 : said - 1;
  const int member = DeviceWaits::WaitingFor(wait);
  recorded_->Wait(oldest_place_,
                  member < 0 ? -1 : connection_.group().members[member]);
  CXL_RETURN_IF_ERROR(waits_.Check(wait, now));
  if (static_cast<cuda::DeviceFault>(Read(status.fault)) !=
      cuda::DeviceFault::kMismatch)
    return OkStatus();
  // A journal describes the first of the calls that differ.
  CXL_RETURN_IF_ERROR(journal_->Compare(written_));
  return waits_.Mismatch(*oldest_, static_cast<int>(std::min<uint64_t>(
                                       Read(status.fault_member), size - 1)));
}

uint64_t CountedChannel::ProgressOf(uint64_t finished, uint64_t started) const {
  const pool::Doorbells& doorbells = connection_.doorbells();
  const cuda::DeviceControl& control = *own_control();
  uint64_t progress = finished + started + doorbells.Read(&control.ended.word) +
                      doorbells.Read(&control.flagged.released);
  for (uint32_t block = 0; block < options_.shape.blocks; ++block)
    progress += doorbells.Read(&control.send[block].published) +
                doorbells.Read(&control.released[block].word);
  return progress;
}

void CountedChannel::Abort() {
  if (status_ == nullptr) return;
  std::atomic_ref(status_.get()->abort).store(1, std::memory_order_release);
}

}  // namespace jax_cxl::comm
