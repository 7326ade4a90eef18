#include "cc/gpu/cuda/channel/counted_channel.h"

#include <algorithm>
#include <utility>

#include "cc/base/text.h"
#include "cc/engine/cuda/flagged/flagged.h"
#include "cc/engine/cuda/premultiplied/premultiplied.h"
#include "cc/engine/gpu_plan/in_place.h"
#include "cc/gpu/relay/relay_plan.h"

namespace jax_cxl::comm {
namespace {

// Describes a call. The descriptor includes the divisor, and whether the sum is
// premultiplied. So there is a mismatch if one rank calls a sum and another
// calls a mean or a premultiplied sum.
cuda::JournalEntry RecordOf(const Call& call, uint32_t divisor,
                            bool premultiplied) {
  cuda::JournalEntry record = {};
  record.descriptor = Describe(call);
  record.descriptor.details += divisor + (uint64_t{premultiplied} << 32);
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
    : GpuChannel(pool, peers,
                 relay == nullptr ? options : WithoutFlags(options),
                 std::move(group), plans, relay) {}

Status CountedChannel::Open(Arena* arena, Recorder* recorder) {
  CXL_RETURN_IF_ERROR(Allocate(/*staging_bytes=*/0));
  if (relay_ != nullptr) {
    CXL_ASSIGN_OR_RETURN(entries_,
                         AllocatePinned<cuda::JournalEntry>(cuda::kJournal));
  }
  // From here on, peers may find this member's part.
  return OpenPart(arena, recorder, /*incarnation=*/0);
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
  if (relay_ != nullptr) {
    // The device writes its journal to pinned memory, and the relay copies the
    // journal to the pool.
    RelayedCall common;
    common.members = connection_.members().data();
    common.num_words = common.blocks = options_.shape.blocks;
    common.num_slots = static_cast<uint32_t>(
        connection_.geometry(SlotUse::kKernels).num_slots);
    common.unit_bytes = connection_.stripes().unit_bytes;
    common.slot_step = connection_.stripes().slot_step;
    device_journal_ = std::make_unique<DeviceJournal>(
        connection_.doorbells(), entries_.get(), own_control().journal,
        std::move(common));
  }
  CXL_RETURN_IF_ERROR(FinishConnecting(device_journal_.get()));
  return true;
}

Result<const StoredPlan*> CountedChannel::PlanFor(const Call& call,
                                                  uint32_t divisor,
                                                  bool premultiplied) {
  cuda::JournalEntry record = RecordOf(call, divisor, premultiplied);
  const std::optional<int64_t> shift = ShiftInPlace(call);
  std::string key = PlanKey(record.descriptor);
  if (shift) key.append(reinterpret_cast<const char*>(&*shift), sizeof(*shift));
  key.append(call.name);
  if (const StoredPlan* found = plans_->Find(key)) return found;
  const plan::Request& request = call.request;
  if (!premultiplied) {  // short messages have no factors
    CXL_ASSIGN_OR_RETURN(const std::optional<cuda::GpuPlan> short_plan,
                         MakeFlaggedPlan(request));
    if (short_plan &&
        (!shift || cuda::ShortIsRightInPlace(*shift, *short_plan)))
      return plans_->Store(key, *short_plan, true, nullptr, &record);
  }
  CXL_ASSIGN_OR_RETURN(cuda::GpuPlan gpu_plan,
                       MakeSlotPlan(request, SlotUse::kKernels));
  if (shift)
    CXL_RETURN_IF_ERROR(
        cuda::OrderInPlace(*shift, connection_.stripes(), &gpu_plan));
  if (device_journal_ != nullptr)
    record.site = device_journal_->Add(
        MakeRelayPlan(gpu_plan, request.num_ranks, request.rank),
        HashDescriptor(record.descriptor, 0));
  return plans_->Store(key, std::move(gpu_plan), false, nullptr, &record);
}

Result<CountedCall> CountedChannel::Prepare(
    const Call& call, uint32_t divisor, const std::optional<Factor>& factor) {
  CXL_ASSIGN_OR_RETURN(const StoredPlan* plan,
                       PlanFor(call, divisor, factor.has_value()));
  CountedCall counted;
  counted.plan = plan;
  counted.device = MakeDeviceCall(call, *plan, SlotUse::kKernels);
  cuda::DeviceCall& device = counted.device;
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
      device_journal_ == nullptr ? own_control().journal : entries_.get();
  return counted;
}

cudaError_t CountedChannel::Launch(const CountedCall& call,
                                   cudaStream_t stream) const {
  const StoredPlan& stored = *call.plan;
  if (call.device.factor_bytes > 0)
    return cuda::LaunchPremultiplied(call.device, options_.shape, stream);
  if (stored.flagged)
    return cuda::LaunchFlagged(call.device, stored.gpu_plan,
                               connection_.members().data(), stream);
  return cuda::LaunchCounted(call.device, options_.shape, stream);
}

// --- the checking thread ---

// Returns call number `place` of this channel, as this member's journal
// describes it.
Call CountedChannel::CallAt(uint64_t place) const {
  const cuda::JournalEntry& entry =
      own_control().journal[place % cuda::kJournal];
  Call call;
  call.name = PrintableText(entry.name);
  call.request.op = static_cast<plan::Op>(entry.descriptor.op);
  call.request.count = entry.descriptor.count;
  call.request.root = entry.descriptor.root;
  call.request.num_ranks = members_count();
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
  const cuda::JournalEntry* journal = own_control().journal;
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
  // Without memory there was no call, and the journal may be a hole.
  if (!connected_ || !pool_->reserved()) return OkStatus();
  const uint64_t finished = Read(status().finished);
  RecordStarted(finished);
  const Status problem = CheckCalls(now, finished);
  // With a relay, the journal in the pool may be behind the device.
  recorded_->Advance(std::min(journal_->compared_by_all(), written_),
                     std::min(finished, written_));
  if (!problem.ok()) recorded_->Fail(finished, problem);
  return problem;
}

Status CountedChannel::CheckCalls(Clock::time_point now, uint64_t finished) {
  CXL_RETURN_IF_ERROR(journal_->Compare(written_));
  if (!oldest_ || oldest_place_ < finished) return OkStatus();
  DeviceWait wait = WaitOf(*oldest_, oldest_place_);
  for (int member = 0; member < members_count(); ++member)
    if (member != connection_.group().self) wait.at_work.push_back(member);
  return CheckWait(wait, oldest_place_, written_, now);
}

bool CountedChannel::RelayIsDone() const {
  std::lock_guard lock(mutex_);
  return channel_relay_ == nullptr || channel_relay_->stopped() ||
         channel_relay_->ended() >= Read(status().finished);
}

}  // namespace jax_cxl::comm
