#include "cc/gpu/cuda/channel/counted_channel.h"

#include <algorithm>
#include <utility>

#include "cc/base/text.h"
#include "cc/engine/cuda/flagged/flagged.h"
#include "cc/engine/cuda/premultiplied/premultiplied.h"
#include "cc/engine/gpu_plan/in_place.h"
#include "cc/gpu/cuda/channel/device_channel_reading.h"
#include "cc/gpu/cuda/channel/device_plans.h"
#include "cc/gpu/relay/flagged_rings.h"
#include "cc/gpu/relay/relay_plan.h"

namespace jax_cxl::comm {
namespace {

// Describes a call. The descriptor includes the divisor, and whether the sum is
// premultiplied. So there is a mismatch if one rank calls a sum and another
// calls a mean or a premultiplied sum.
pool::CallDescriptor DescribeCounted(const Call& call, uint32_t divisor,
                                     bool premultiplied) {
  pool::CallDescriptor descriptor = Describe(call);
  descriptor.details += divisor + (uint64_t{premultiplied} << 32);
  return descriptor;
}

cuda::JournalEntry RecordOf(const Call& call, uint32_t divisor,
                            bool premultiplied) {
  cuda::JournalEntry record = {};
  record.descriptor = DescribeCounted(call, divisor, premultiplied);
  call.name.copy(record.name, sizeof(record.name) - 1);
  return record;
}

// Returns where the output begins relative to the input, in bytes, or nothing
// if they do not overlap.
std::optional<int64_t> ShiftInPlace(const Call& call) {
  const int64_t shift = call.output - call.input;
  const auto before = static_cast<int64_t>(plan::OutputBytes(call.request));
  const auto behind = static_cast<int64_t>(plan::InputBytes(call.request));
  if (shift <= -before || shift >= behind) return std::nullopt;
  return shift;
}

// Turns the flags off. A channel with a relay cannot use them: when the flags
// start again at 0, the relay would have to clear the rings of short messages,
// but only the device knows when that is.
DeviceOptions WithoutFlags(DeviceOptions options) {
  options.flagged_slot_bytes = 0;
  return options;
}

}  // namespace

CountedChannel::CountedChannel(pool::Pool* pool, Peers* peers,
                               const DeviceOptions& options, Group group,
                               PlanStore* plans, Relay* relay)
    : pool_(pool),
      peers_(peers),
      options_(relay == nullptr ? options : WithoutFlags(options)),
      connection_(pool, peers, options_, std::move(group)),
      plans_(plans),
      relay_(relay),
      waits_(pool, peers, options, connection_.group()) {}

Status CountedChannel::Open(Arena* arena, Recorder* recorder) {
  CXL_ASSIGN_OR_RETURN(scratch_, AllocateDevice<cuda::DeviceScratch>(1));
  CXL_ASSIGN_OR_RETURN(status_, AllocatePinned<cuda::DeviceStatus>(1));
  const cuda::DeviceScratch scratch = {
      .flagged_released = options_.first_flagged_round,
      .position = {.flagged_rounds = options_.first_flagged_round}};
  CXL_RETURN_IF_ERROR(CopyToDevice(scratch_.get(), &scratch, 1));
  // From here on, peers may find this member's part.
  CXL_RETURN_IF_ERROR(connection_.Open(arena, recorder, /*incarnation=*/0));
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
  journal_ = std::make_unique<Journal>(pool_, connection_.group(),
                                       connection_.controls());
  if (relay_ != nullptr) CXL_RETURN_IF_ERROR(OpenRelay());
  CXL_ASSIGN_OR_RETURN(
      members_, AllocateDevice<cuda::MemberView>(connection_.members().size()));
  CXL_RETURN_IF_ERROR(connection_.CopyMembersTo(members_.get()));
  connected_ = true;
  return OkStatus();
}

// Makes the mirror, the journal and the channel's relay. The device uses the
// words in the mirror instead of those in the pool. It writes its journal to
// pinned memory, and the relay copies the journal to the pool.
Status CountedChannel::OpenRelay() {
  const size_t size = connection_.members().size();
  const int self = connection_.group().self;
  CXL_ASSIGN_OR_RETURN(mirror_, AllocatePinned<cuda::MirrorWords>(size));
  CXL_ASSIGN_OR_RETURN(entries_,
                       AllocatePinned<cuda::JournalEntry>(cuda::kJournal));
  std::vector<cuda::MirrorWords*> mirror;
  std::vector<cuda::FlaggedControl*> rings;
  for (size_t member = 0; member < size; ++member) {
    mirror.push_back(&mirror_[member]);
    rings.push_back(&connection_.control(static_cast<int>(member))->flagged);
  }
  RelayedCall common;
  common.members = connection_.members().data();
  common.num_words = common.blocks = options_.shape.blocks;
  common.num_slots =
      static_cast<uint32_t>(connection_.geometry(SlotUse::kKernels).num_slots);
  common.unit_bytes = connection_.stripes().unit_bytes;
  common.slot_step = connection_.stripes().slot_step;
  device_journal_ = std::make_unique<DeviceJournal>(
      connection_.doorbells(), entries_.get(), own_control()->journal,
      std::move(common));
  auto channel_relay = std::make_unique<ChannelRelay>(
      connection_.doorbells(), !options_.gpu_writes_memory,
      connection_.controls(), std::move(mirror),
      FlaggedRings(connection_.doorbells(), std::move(rings), self), self);
  channel_relay->Follow(device_journal_.get());
  connection_.Mirror(mirror_.get());
  {
    std::lock_guard lock(relay_mutex_);
    channel_relay_ = std::move(channel_relay);
    if (Read(status_.get()->abort) != 0) channel_relay_->Stop();
  }
  relay_->Add(channel_relay_.get());
  relay_->Wake();
  return OkStatus();
}

Result<const StoredPlan*> CountedChannel::PlanFor(const Call& call,
                                                  uint32_t divisor,
                                                  bool premultiplied) {
  cuda::JournalEntry record = RecordOf(call, divisor, premultiplied);
  const std::optional<int64_t> shift = ShiftInPlace(call);
  const uint64_t channel = connection_.key();
  std::string key(reinterpret_cast<const char*>(&channel), sizeof(channel));
  key.append(reinterpret_cast<const char*>(&record.descriptor),
             sizeof(record.descriptor));
  if (shift) key.append(reinterpret_cast<const char*>(&*shift), sizeof(*shift));
  key.append(call.name);
  if (const StoredPlan* found = plans_->Find(key)) return found;
  const plan::Request& request = call.request;
  if (!premultiplied) {  // short messages have no factors
    CXL_ASSIGN_OR_RETURN(const std::optional<cuda::GpuPlan> short_plan,
                         MakeFlaggedPlan(request, options_.flagged_slot_bytes));
    if (short_plan &&
        (!shift || cuda::ShortIsRightInPlace(*shift, *short_plan)))
      return plans_->Store(key, *short_plan, true, nullptr, &record);
  }
  CXL_ASSIGN_OR_RETURN(cuda::GpuPlan gpu_plan,
                       MakeSlotPlan(request, connection_, SlotUse::kKernels));
  if (shift)
    CXL_RETURN_IF_ERROR(
        cuda::OrderInPlace(*shift, connection_.stripes(), &gpu_plan));
  if (device_journal_ != nullptr)
    record.site = device_journal_->Add(
        MakeRelayPlan(gpu_plan.sending, gpu_plan.receiving, gpu_plan.rounds,
                      request.num_ranks, request.rank),
        HashDescriptor(record.descriptor, 0));
  return plans_->Store(key, gpu_plan, false, nullptr, &record);
}

Result<CountedCall> CountedChannel::Prepare(
    const Call& call, uint32_t divisor, const std::optional<Factor>& factor) {
  CXL_ASSIGN_OR_RETURN(const StoredPlan* plan,
                       PlanFor(call, divisor, factor.has_value()));
  CountedCall counted;
  counted.plan = plan;
  counted.device = MakeDeviceCall(call, *plan, connection_, SlotUse::kKernels);
  cuda::DeviceCall& device = counted.device;
  device.members = members_.get();
  device.epoch = pool_->epoch();
  device.status = status_.get();
  device.scratch = scratch_.get();
  device.timeout_ns = ~uint64_t{0};  // the host decides
  device.divisor = divisor;
  if (factor) {
    device.factor_bytes = call.request.element_bytes;
    device.factor_at = factor->at;
    device.factor = factor->bits;
  }
  device.descriptor_hash = plan->descriptor_hash;
  device.record = plan->record;
  device.journal =
      device_journal_ == nullptr ? own_control()->journal : entries_.get();
  return counted;
}

cudaError_t CountedChannel::Launch(const CountedCall& call,
                                   cudaStream_t stream) const {
  const StoredPlan& stored = *call.plan;
  if (call.device.factor_bytes > 0)
    return cuda::LaunchPremultiplied(call.device, options_.shape, stream);
  if (!stored.flagged)
    return cuda::LaunchCounted(call.device, options_.shape, stream);
  return cuda::LaunchFlagged(
      call.device,
      {stored.host_sending, stored.host_receiving, connection_.members().data(),
       stored.flagged_blocks, stored.flagged_sources},
      stream);
}

// --- the checking thread ---

// Returns call number `place` of this channel, as this member's journal
// describes it.
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
// keeps only the latest calls, so older ones are skipped.
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
  // With a relay, the journal in the pool may be behind the device.
  recorded_->Advance(std::min(journal_->compared_by_all(), written_),
                     std::min(finished, written_));
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
  // A relay rings only the first word for publications and the first word for
  // releases.
  const int words =
      relay_ == nullptr ? static_cast<int>(options_.shape.blocks) : 1;
  wait.progress = finished + Read(status.started) + connection_.Progress(words);
  const auto said = static_cast<int>(Read(status.waiting_for));
  wait.waiting_for = said > size ? -1 : said - 1;
  const int member = DeviceWaits::WaitingFor(wait);
  recorded_->Wait(oldest_place_,
                  member < 0 ? -1 : connection_.group().members[member]);
  CXL_RETURN_IF_ERROR(waits_.Check(wait, now));
  if (static_cast<cuda::DeviceFault>(Read(status.fault)) !=
      cuda::DeviceFault::kMismatch)
    return OkStatus();
  // The device reports only that a call differs. The journals show which call
  // was the first to differ, so compare them again: they may have grown since
  // the comparison above.
  CXL_RETURN_IF_ERROR(journal_->Compare(written_));
  return waits_.Mismatch(*oldest_, static_cast<int>(std::min<uint64_t>(
                                       Read(status.fault_member), size - 1)));
}

void CountedChannel::Abort() {
  if (status_ == nullptr) return;
  std::atomic_ref(status_.get()->abort).store(1, std::memory_order_release);
  std::lock_guard lock(relay_mutex_);
  if (channel_relay_ != nullptr) channel_relay_->Stop();
}

bool CountedChannel::RelayIsDone() const {
  std::lock_guard lock(relay_mutex_);
  return channel_relay_ == nullptr || channel_relay_->stopped() ||
         channel_relay_->ended() >= Read(status_.get()->finished);
}

}  // namespace jax_cxl::comm
