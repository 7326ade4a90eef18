// The part of StreamChannel that opens and connects a channel before the first
// call, takes its memory back, and starts the flags of short calls again after
// 2^32 rounds. It runs on the enqueuing side.

#include <chrono>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "cc/base/cuda/cuda_status.h"
#include "cc/base/cuda/streams.h"
#include "cc/comm/call/backoff.h"
#include "cc/engine/cuda/executor.h"
#include "cc/gpu/cuda/channel/stream_channel.h"

namespace jax_cxl::comm {

Status StreamChannel::Open(Arena* arena, Recorder* recorder,
                           uint64_t incarnation, DeviceBuffers* spare) {
  CXL_RETURN_IF_ERROR(OpenPart(arena, recorder, incarnation));
  buffers_ = std::move(*spare);
  CXL_RETURN_IF_ERROR(Allocate(cuda::CopyEngine::kBuffers * staging_bytes()));
  CXL_ASSIGN_OR_RETURN(last_done_, cuda::MakeEvent());
  return OkStatus();
}

Status StreamChannel::Connect(const Call& call) {
  for (uint64_t found = 0; !connected_;) {
    CXL_ASSIGN_OR_RETURN(const bool all, connection_.Connect());
    if (all) {
      if (relay_ == nullptr)
        taking_back_.emplace(connection_.doorbells(), connection_.Entries(),
                             connection_.group().self);
      return FinishConnecting();
    }
    const std::vector<int> missing = connection_.Missing();
    const DeviceWait wait = {.call = &call,
                             .begun = true,
                             .missing = missing,
                             .at_work = {},
                             .waiting_for = -1,
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

bool StreamChannel::Idle() {
  if (calls_ == 0) return true;
  if (Read(status().finished) != calls_ || !RecordLast().ok()) return false;
  const cudaError_t ended = cudaEventQuery(last_done_.get());
  // cudaEventQuery has also stored this error. Clear it, because otherwise the
  // next launch of a kernel would report it.
  if (ended == cudaErrorNotReady) cudaGetLastError();
  return ended == cudaSuccess;
}

bool StreamChannel::TryTake() {
  return taking_back_ && taking_back_->TryTake(calls_, [this](int member) {
    return peers_->Ended(connection_.group().members[member]);
  });
}

DeviceBuffers StreamChannel::Close(Arena* arena) {
  connection_.Close(arena);
  return std::move(buffers_);
}

// Takes the place of the round whose flag would be 0. Once the device has ended
// all earlier calls, the host clears this member's ring for short messages.
Status StreamChannel::BeginFlagsAnew() {
  if (calls_ > 1) CXL_RETURN_IF_ERROR(RecordLast());
  CXL_RETURN_IF_ERROR(cuda::CudaStatus(cudaEventSynchronize(last_done_.get()),
                                       "cudaEventSynchronize"));
  Backoff backoff;
  const auto go_on = [&] { return Read(status().abort) == 0; };
  while (channel_relay_ != nullptr && !channel_relay_->idle() && go_on())
    backoff.Pause();
  if (rings_->BeginAnew(flagged_rounds_, go_on)) return OkStatus();
  return EarlierFailure();
}

}  // namespace jax_cxl::comm
