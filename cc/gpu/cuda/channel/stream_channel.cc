#include "cc/gpu/cuda/channel/stream_channel.h"

#include <algorithm>
#include <string>
#include <utility>

#include "cc/base/cuda/cuda_status.h"
#include "cc/base/cuda/streams.h"
#include "cc/engine/cuda/executor.h"
#include "cc/engine/cuda/flagged/flagged.h"
#include "cc/engine/cuda/rows.h"
#include "cc/engine/gpu_plan/flagged_ring.h"
#include "cc/plan/slices.h"

namespace jax_cxl::comm {
namespace {

cudaError_t LaunchRows(const Call& call, const cuda::DeviceCall& device,
                       const cuda::Shape& shape, cudaStream_t stream) {
  const RowOperands& operands = call.row_operands;
  cuda::DeviceRows rows;
  const cudaError_t error =
      call.request.op == plan::Op::kTakeRows
          ? cuda::PrepareIndices(call.request, operands.indices,
                                 operands.published, operands.scratch,
                                 call.input, call.output, &rows, stream)
          : cuda::PrepareSlices(call.request, operands.slice_entry_bytes,
                                operands.scratch, call.input, call.output,
                                device.status, &rows, stream);
  if (error != cudaSuccess) return error;
  return cuda::LaunchRows(device, shape, rows, stream);
}

bool GathersSlices(const Call& call) {
  return call.request.op == plan::Op::kRaggedAllToAll && call.request.count > 0;
}

// Returns the call that is the first part of a ragged_all_to_all. This call
// gathers the tables of slices, so that every member has the tables of all
// members.
Call GatherOfSlices(const Call& ragged) {
  const RowOperands& operands = ragged.row_operands;
  Call gather;
  gather.request.op = plan::Op::kAllGather;
  gather.request.num_ranks = ragged.request.num_ranks;
  gather.request.rank = ragged.request.rank;
  gather.request.count = plan::SliceEntries(ragged.request);
  gather.request.element_bytes = operands.slice_entry_bytes;
  gather.dtype = operands.slice_entry_bytes == sizeof(int32_t) ? DType::kInt32
                                                               : DType::kInt64;
  gather.input = static_cast<const std::byte*>(operands.slices);
  gather.output = cuda::RowScratch(ragged.request, operands.scratch).slices;
  gather.name = ragged.name;
  gather.site = ragged.site;
  return gather;
}

}  // namespace

StreamChannel::StreamChannel(pool::Pool* pool, Peers* peers,
                             const DeviceOptions& options, Group group,
                             PlanStore* plans, cuda::CopyEngine* copy_engine,
                             Relay* relay)
    : GpuChannel(pool, peers, options, std::move(group), plans, relay),
      copy_engine_(copy_engine),
      flagged_rounds_(options.first_flagged_round),
      heard_rounds_(options.first_flagged_round) {}

// Returns the size of one of the buffers to which the copy engines copy the
// peers' operands of a reduction.
uint64_t StreamChannel::staging_bytes() const {
  return (connection_.members().size() - 1) *
         connection_.geometry(SlotUse::kCopies).slot_bytes;
}

// Makes `stream` wait for the channel's last call. So the calls of a channel
// execute in the order in which they are enqueued, even on different streams.
Status StreamChannel::FollowLast(cudaStream_t stream) {
  if (calls_ == 0 || stream == last_stream_) return OkStatus();
  CXL_RETURN_IF_ERROR(RecordLast());
  return cuda::StreamWait(stream, last_done_);
}

// Makes sure that the event `last_done_` is recorded after the last call.
Status StreamChannel::RecordLast() {
  if (last_recorded_) return OkStatus();
  CXL_RETURN_IF_ERROR(cuda::Record(last_done_, last_stream_));
  last_recorded_ = true;
  return OkStatus();
}

GpuCallFacts StreamChannel::FactsOf(const Call& call, bool aside) const {
  GpuCallFacts facts;
  facts.op = call.request.op;
  facts.bytes =
      std::max(plan::InputBytes(call.request), plan::OutputBytes(call.request));
  facts.members = members_count();
  facts.world_size = pool_->world_size();
  facts.aside = aside;
  facts.striped = connection_.stripes().slot_step > 0;
  facts.relayed = relay_ != nullptr;
  if (series_) facts.short_calls = series_->short_calls;
  return facts;
}

Result<bool> StreamChannel::FollowEarlierCalls(const GpuCallFacts& facts,
                                               GpuPath path,
                                               cudaStream_t stream) {
  const bool in_series = path.copies() && series_ && series_->path == path;
  if (!in_series) {
    CXL_RETURN_IF_ERROR(FollowLast(stream));
    series_.reset();
    if (path.copies()) series_ = {path, rounds_};
  }
  if (path.copies())
    series_->short_calls =
        IsShort(facts, options_) ? series_->short_calls + 1 : 0;
  return in_series;
}

Result<const StoredPlan*> StreamChannel::StoredPlanFor(
    const Call& call, const pool::CallDescriptor& descriptor, GpuPath path) {
  std::string key = PlanKey(descriptor);
  // Hashes may collide, so the key contains the permutation itself.
  key.append(reinterpret_cast<const char*>(call.request.sources.data()),
             call.request.sources.size() * sizeof(int32_t));
  key.push_back(static_cast<char>(path.slots()));
  if (const StoredPlan* found = plans_->Find(key)) return found;
  const auto store = [&](cuda::GpuPlan gpu_plan, bool flagged) {
    std::shared_ptr<const RelayPlan> relayed;
    if (relay_ != nullptr)
      relayed = std::make_shared<const RelayPlan>(
          MakeRelayPlan(gpu_plan, members_count(), connection_.group().self));
    return plans_->Store(key, std::move(gpu_plan), flagged, std::move(relayed));
  };
  if (!path.copies()) {
    CXL_ASSIGN_OR_RETURN(std::optional<cuda::GpuPlan> gpu_plan,
                         MakeFlaggedPlan(call.request));
    if (gpu_plan) return store(*std::move(gpu_plan), true);
  }
  CXL_ASSIGN_OR_RETURN(cuda::GpuPlan gpu_plan,
                       MakeSlotPlan(call.request, path.slots()));
  return store(std::move(gpu_plan), false);
}

// Returns a call in the form in which the device executes it. Sets the fields
// that every GpuPath needs.
cuda::DeviceCall StreamChannel::Prepare(const Call& call,
                                        const StoredPlan& stored,
                                        const pool::CallDescriptor& descriptor,
                                        SlotUse use) {
  cuda::DeviceCall device = MakeDeviceCall(call, stored, use);
  device.base_round = stored.flagged ? flagged_rounds_ : rounds_;
  device.call = calls_;
  device.hash = calls_hash_ =
      HashDescriptor(descriptor, calls_hash_) & cuda::kValueMask;
  // This deadline is for a device whose host no longer runs. Otherwise the
  // host's deadline passes first, and the host reports a better error.
  device.timeout_ns =
      static_cast<uint64_t>((options_.timeout_s * 1.5 + 5) * 1e9);
  return device;
}

void StreamChannel::TellRelay(const cuda::DeviceCall& call,
                              const StoredPlan& stored, GpuPath path,
                              const cuda::Shape& shape, bool in_series) {
  const bool copies = path.copies();
  RelayedCall relayed;
  relayed.plan = stored.relay;
  relayed.members = connection_.members().data();
  relayed.num_words = copies ? path.copy_pipelines : shape.blocks;
  relayed.words_take_turns = copies;
  relayed.num_slots = call.num_slots;
  relayed.unit_bytes = call.unit_bytes;
  relayed.blocks = shape.blocks;
  relayed.slot_step = copies ? 0 : call.slot_step;
  relayed.base_round = call.base_round;
  relayed.call = call.call;
  relayed.hash = call.hash;
  relayed.awaited_end = copies                 ? series_->begin
                        : last_by_copy_engine_ ? call.base_round
                                               : 0;
  relayed.follows_on = in_series;
  channel_relay_->Enqueue(std::move(relayed));
  relay_->Wake();
}

Status StreamChannel::LaunchFlaggedRound(cuda::DeviceCall call,
                                         const StoredPlan& stored,
                                         cudaStream_t stream) {
  if (cuda::flagged::BeginsAnew(flagged_rounds_)) {
    CXL_RETURN_IF_ERROR(BeginFlagsAnew());
    call.base_round = ++flagged_rounds_;
  }
  ++flagged_rounds_;
  call.flagged_released = heard_rounds_;
  if (cuda::flagged::HearsAll(cuda::flagged::SourcesOf(stored.gpu_plan),
                              members_count(), call.self))
    heard_rounds_ = call.base_round;
  if (relay_ != nullptr) {
    RelayedCall relayed;
    relayed.plan = stored.relay;
    relayed.flagged = true;
    relayed.base_round = call.base_round;
    channel_relay_->Enqueue(std::move(relayed));
    relay_->Wake();
  }
  return cuda::CudaStatus(
      cuda::LaunchFlagged(call, stored.gpu_plan, connection_.members().data(),
                          stream),
      "launching a collective");
}

bool StreamChannel::Announce(const Call& call) {
  return !taking_back_ ||
         taking_back_->Announce(calls_ + 1 + (GathersSlices(call) ? 1 : 0));
}

Result<cudaStream_t> StreamChannel::Enqueue(const Call& call, bool aside,
                                            cudaStream_t stream) {
  if (plan::MovesRows(call.request.op) && call.request.count > 0) {
    CXL_RETURN_IF_ERROR(cuda::CudaStatus(
        cuda::ClearRows(call.request, call.row_operands.scratch, stream),
        "clearing scratch memory"));
    if (GathersSlices(call)) {
      CXL_RETURN_IF_ERROR(
          RecordAndLaunch(GatherOfSlices(call), aside, stream).status());
      std::lock_guard lock(mutex_);
      ++parts_of_calls_;
    }
  }
  return RecordAndLaunch(call, aside, stream);
}

Result<cudaStream_t> StreamChannel::RecordAndLaunch(const Call& started,
                                                    bool aside,
                                                    cudaStream_t stream) {
  Call call = started;
  const uint64_t place = calls_;
  {
    std::lock_guard lock(mutex_);
    recorded_->Record(place, &call);
  }
  Result<cudaStream_t> end = Launch(call, aside, stream);
  if (end.ok()) return end;
  // The relay may already have the call, which no device will execute. So let
  // the relay drop it.
  if (channel_relay_ != nullptr) channel_relay_->Stop();
  std::lock_guard lock(mutex_);
  recorded_->Fail(place, end.status());
  return end;
}

Status StreamChannel::LaunchCopies(const cuda::DeviceCall& call,
                                   const cuda::GpuPlan& gpu_plan, GpuPath path,
                                   cudaStream_t stream) {
  const cuda::CopyTimes* times;
  {
    std::lock_guard lock(mutex_);
    times = &*under_way_.back().times;
  }
  last_by_copy_engine_ = true;
  return cuda::CudaStatus(
      copy_engine_->Enqueue(
          call,
          {gpu_plan, path.copy_pipelines, connection_.members().data(),
           buffers_.staging.get(), staging_bytes(), series_->begin},
          *times, stream),
      "launching a collective");
}

Status StreamChannel::LaunchKernel(const Call& call,
                                   const cuda::DeviceCall& device,
                                   const cuda::Shape& shape,
                                   cudaStream_t stream) {
  cudaError_t error = cudaSuccess;
  // A kernel with another number of blocks than the previous one divides the
  // slots differently. This matters only without a relay, because a relay waits
  // for the words of all blocks itself.
  if (last_by_copy_engine_ ||
      (relay_ == nullptr && last_blocks_ > 0 && last_blocks_ != shape.blocks))
    error = cuda::LaunchWaitForEnd(device, stream);
  last_by_copy_engine_ = false;
  last_blocks_ = shape.blocks;
  if (error == cudaSuccess)
    error = plan::MovesRows(call.request.op) && call.request.count > 0
                ? LaunchRows(call, device, shape, stream)
                : cuda::Launch(device, shape, stream);
  return cuda::CudaStatus(error, "launching a collective");
}

Result<cudaStream_t> StreamChannel::Launch(const Call& call, bool aside,
                                           cudaStream_t stream) {
  CXL_RETURN_IF_ERROR(Connect(call));
  const GpuCallFacts facts = FactsOf(call, aside);
  const GpuPath path = ChoosePath(facts, options_);
  CXL_ASSIGN_OR_RETURN(const bool in_series,
                       FollowEarlierCalls(facts, path, stream));
  const pool::CallDescriptor descriptor = Describe(call);
  CXL_ASSIGN_OR_RETURN(const StoredPlan* stored,
                       StoredPlanFor(call, descriptor, path));
  const cuda::GpuPlan& gpu_plan = stored->gpu_plan;
  const cuda::DeviceCall device =
      Prepare(call, *stored, descriptor, path.slots());
  const cuda::Shape shape = ChooseShape(facts, options_);
  CXL_RETURN_IF_ERROR(Note(call, descriptor, *stored, path));
  if (relay_ != nullptr && !stored->flagged)
    TellRelay(device, *stored, path, shape, in_series);
  cudaStream_t end = stream;
  if (path.copies()) {
    CXL_RETURN_IF_ERROR(LaunchCopies(device, gpu_plan, path, stream));
    end = copy_engine_->end();
  } else if (stored->flagged) {
    CXL_RETURN_IF_ERROR(LaunchFlaggedRound(device, *stored, stream));
  } else {
    CXL_RETURN_IF_ERROR(LaunchKernel(call, device, shape, stream));
  }
  last_recorded_ = aside || path.copies();
  if (last_recorded_) CXL_RETURN_IF_ERROR(cuda::Record(last_done_, end));
  if (path.copies() && !aside)
    CXL_RETURN_IF_ERROR(cuda::StreamWait(stream, last_done_));
  last_stream_ = end;
  if (!stored->flagged) rounds_ += gpu_plan.rounds;
  if (plan::MovesRows(call.request.op)) return end;  // the device counts
  std::lock_guard lock(mutex_);
  stats_.bytes_published += gpu_plan.bytes_published;
  stats_.bytes_retrieved += gpu_plan.bytes_retrieved;
  return end;
}

// Returns events that measure the time of a call. Fails if Abort was called
// before. Requires the mutex.
Result<cuda::CopyTimes> StreamChannel::TakeTimes() {
  if (Read(status().abort) != 0) return EarlierFailure();
  cuda::CopyTimes times;
  if (free_times_.empty()) {
    for (cuda::Event* event : {&times.begin, &times.end}) {
      CXL_ASSIGN_OR_RETURN(*event, cuda::MakeEvent(cudaEventDefault));
    }
  } else {
    times = std::move(free_times_.back());
    free_times_.pop_back();
  }
  return times;
}

// From here on, Abort knows whether it has to stop the copy engines.
Status StreamChannel::Note(const Call& call,
                           const pool::CallDescriptor& descriptor,
                           const StoredPlan& stored, GpuPath path) {
  Enqueued enqueued = {
      call, stored.flagged, rounds_ + stored.gpu_plan.rounds, {}};
  if (stored.flagged)
    enqueued.end =
        flagged_rounds_ + (cuda::flagged::BeginsAnew(flagged_rounds_) ? 2 : 1);
  std::lock_guard lock(mutex_);
  if (path.copies()) {
    CXL_ASSIGN_OR_RETURN(enqueued.times, TakeTimes());
  }
  under_way_.push_back(std::move(enqueued));
  ++calls_;
  journal_->Write(call, descriptor);
  return OkStatus();
}

}  // namespace jax_cxl::comm
