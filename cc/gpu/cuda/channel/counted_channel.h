#ifndef JAX_CXL_GPU_CUDA_CHANNEL_COUNTED_CHANNEL_H_
#define JAX_CXL_GPU_CUDA_CHANNEL_COUNTED_CHANNEL_H_

#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>
#include <optional>

#include "cc/base/cuda/device_memory.h"
#include "cc/base/status.h"
#include "cc/comm/call/call.h"
#include "cc/engine/cuda/device_call.h"
#include "cc/engine/gpu_plan/channel_words.h"
#include "cc/engine/gpu_plan/shape.h"
#include "cc/gpu/cuda/channel/gpu_channel.h"
#include "cc/gpu/relay/device_journal.h"

namespace jax_cxl::comm {

// A call in the form in which the device executes it. The device may execute it
// any number of times.
struct CountedCall {
  cuda::DeviceCall device;
  const StoredPlan* plan = nullptr;
};

// A channel whose calls the device counts: their numbers live in the memory of
// the device, and the device writes the journal. So a stream capture may record
// a call, and its graph may execute the call any number of times. The user
// makes sure that the calls of a channel run on the device one after another.
//
// Only kernels execute these calls. In a pool without coherence, a relay learns
// of them from the device's journal, and even short calls go through the slots,
// without flags. Calls that cannot complete stay on the device until Abort.
// Their results are undefined.
class CountedChannel final : public GpuChannel {
 public:
  CountedChannel(pool::Pool* pool, Peers* peers, const DeviceOptions& options,
                 Group group, PlanStore* plans, Relay* relay);

  // Allocates this member's part of the pool, and the channel's own memory on
  // the current device. Publishes the place of the part.
  Status Open(Arena* arena, Recorder* recorder);

  // Returns true once all members have opened the channel. Fails if one of them
  // is lost.
  Result<bool> TryConnect();

  // Prepares a call for Launch or cuda::LaunchTransfers. The results of a
  // reduction are divided by `divisor`, unless it is 0. `factor` is the factor
  // of a premultiplied sum. The channel must be connected, and the call must
  // move data.
  Result<CountedCall> Prepare(const Call& call, uint32_t divisor,
                              const std::optional<Factor>& factor = {});

  cudaError_t Launch(const CountedCall& call, cudaStream_t stream) const;

  const cuda::Shape& shape() const { return options_.shape; }

  // Returns true once the relay has ended all calls that the device has ended.
  // The peers then have all doorbells of these calls. Also returns true if
  // there is no relay, or if it was stopped.
  bool RelayIsDone() const;

  Status Check(Clock::time_point now) override;

 private:
  Result<const StoredPlan*> PlanFor(const Call& call, uint32_t divisor,
                                    bool premultiplied);
  Status CheckCalls(Clock::time_point now, uint64_t finished);
  void RecordStarted(uint64_t finished);
  Call CallAt(uint64_t place) const;

  // With a relay:
  PinnedMemory<cuda::JournalEntry> entries_;
  std::unique_ptr<DeviceJournal> device_journal_;

  // Only the checking thread uses the following members.
  uint64_t written_ = 0;        // calls seen in this member's journal
  std::optional<Call> oldest_;  // of the calls that have not finished
  uint64_t oldest_place_ = 0;
};

}  // namespace jax_cxl::comm

#endif  // JAX_CXL_GPU_CUDA_CHANNEL_COUNTED_CHANNEL_H_
