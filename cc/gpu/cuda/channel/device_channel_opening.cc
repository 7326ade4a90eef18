// The part of DeviceChannel that opens and connects a channel before the first
// call, takes its memory back, and starts the flags of short calls again after
// 2^32 rounds. It runs on the enqueuing side.

#include <chrono>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "cc/base/cuda/cuda_status.h"
#include "cc/comm/call/backoff.h"
#include "cc/engine/cuda/executor.h"
#include "cc/gpu/cuda/channel/device_channel.h"
#include "cc/gpu/cuda/channel/device_channel_reading.h"

namespace jax_cxl::comm {

Status DeviceChannel::Open(Arena* arena, Recorder* recorder,
                           uint64_t incarnation, DeviceBuffers* spare) {
  CXL_RETURN_IF_ERROR(connection_.Open(arena, recorder, incarnation));
  recorded_.emplace(recorder, connection_.key());
  members_ = std::move(spare->members);
  scratch_ = std::move(spare->scratch);
  staging_ = std::move(spare->staging);
  status_ = std::move(spare->status);
  if (members_ == nullptr) {
    CXL_ASSIGN_OR_RETURN(members_,
                         AllocateDevice<cuda::MemberView>(members_count()));
    CXL_ASSIGN_OR_RETURN(scratch_, AllocateDevice<cuda::DeviceScratch>(1));
    CXL_ASSIGN_OR_RETURN(staging_,
                         AllocateDevice<std::byte>(cuda::CopyEngine::kBuffers *
                                                   staging_bytes()));
    CXL_ASSIGN_OR_RETURN(status_, AllocatePinned<cuda::DeviceStatus>(1));
  }
  *status_.get() = {};
  const cuda::DeviceScratch scratch = {.flagged_released = flagged_rounds_};
  CXL_RETURN_IF_ERROR(CopyToDevice(scratch_.get(), &scratch, 1));
  return cuda::CudaStatus(
      cudaEventCreateWithFlags(&last_done_, cudaEventDisableTiming),
      "cudaEventCreate");
}

Status DeviceChannel::Connect(const Call& call) {
  for (uint64_t found = 0; !connected_;) {
    CXL_ASSIGN_OR_RETURN(const bool all, connection_.Connect());
    if (all) return FinishConnecting();
    const std::vector<int> missing = connection_.Missing();
    const DeviceWait wait = {.call = &call,
                             .begun = true,
                             .missing = missing,
                             .at_work = {},
                             .progress = missing.size()};
    CXL_RETURN_IF_ERROR(waits_.Check(wait, peers_->AwakeTime()));
    if (std::exchange(found, missing.size()) != missing.size()) {
      std::lock_guard lock(mutex_);
      recorded_->Wait(calls_, connection_.group().members[missing.front()]);
    }
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
  return OkStatus();
}

Status DeviceChannel::FinishConnecting() {
  journal_ = std::make_unique<Journal>(pool_, connection_.group(),
                                       connection_.controls());
  OpenRings();
  if (relay_ != nullptr)
    CXL_RETURN_IF_ERROR(OpenRelay());
  else
    taking_back_.emplace(connection_.doorbells(), connection_.Entries(),
                         connection_.group().self);
  CXL_RETURN_IF_ERROR(connection_.CopyMembersTo(members_.get()));
  connected_ = true;
  return OkStatus();
}

bool DeviceChannel::Idle() {
  if (calls_ == 0) return true;
  if (Read(status_.get()->finished) != calls_ || !RecordLast().ok())
    return false;
  const cudaError_t ended = cudaEventQuery(last_done_);
  // cudaEventQuery has also stored this error. Clear it, because otherwise the
  // next launch of a kernel would report it.
  if (ended == cudaErrorNotReady) cudaGetLastError();
  return ended == cudaSuccess;
}

bool DeviceChannel::TryTake() {
  return taking_back_ && taking_back_->TryTake(calls_, [this](int member) {
    return peers_->Ended(connection_.group().members[member]);
  });
}

DeviceBuffers DeviceChannel::Close(Arena* arena) {
  connection_.Close(arena);
  return {std::move(members_), std::move(scratch_), std::move(staging_),
          std::move(status_)};
}

// Makes the host's view of the members' rings for short messages. Called once
// the peers have cleared their rings.
void DeviceChannel::OpenRings() {
  std::vector<cuda::FlaggedControl*> rings;
  for (int member = 0; member < members_count(); ++member)
    rings.push_back(&connection_.control(member)->flagged);
  rings_.emplace(connection_.doorbells(), std::move(rings),
                 connection_.group().self, connection_.flagged_slot_bytes());
  rings_->DropPeers();
}

// Makes the mirror and the channel's relay. With a relay, the device uses the
// words in the mirror instead of those in the pool, and the relay passes them
// on.
Status DeviceChannel::OpenRelay() {
  const size_t size = connection_.members().size();
  CXL_ASSIGN_OR_RETURN(mirror_, AllocatePinned<cuda::MirrorWords>(size));
  std::vector<cuda::MirrorWords*> mirror;
  for (size_t member = 0; member < size; ++member)
    mirror.push_back(&mirror_[member]);
  channel_relay_ = std::make_unique<ChannelRelay>(
      connection_.doorbells(), !options_.gpu_writes_memory,
      connection_.controls(), std::move(mirror), *rings_,
      connection_.group().self);
  connection_.Mirror(mirror_.get());
  relay_->Add(channel_relay_.get());
  return OkStatus();
}

// Takes the place of the round whose flag would be 0. Once the device has ended
// all earlier calls, the host clears this member's ring for short messages.
Status DeviceChannel::BeginFlagsAnew() {
  if (calls_ > 1) CXL_RETURN_IF_ERROR(RecordLast());
  CXL_RETURN_IF_ERROR(cuda::CudaStatus(cudaEventSynchronize(last_done_),
                                       "cudaEventSynchronize"));
  Backoff backoff;
  const auto go_on = [&] { return Read(status_.get()->abort) == 0; };
  while (channel_relay_ != nullptr && !channel_relay_->idle() && go_on())
    backoff.Pause();
  if (rings_->BeginAnew(flagged_rounds_, go_on)) return OkStatus();
  return Error(Code::kFailedPrecondition,
               "an earlier collective of this process has failed; look for its "
               "error, and start all processes again");
}

}  // namespace jax_cxl::comm
