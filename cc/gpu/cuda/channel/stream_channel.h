#ifndef JAX_CXL_GPU_CUDA_CHANNEL_STREAM_CHANNEL_H_
#define JAX_CXL_GPU_CUDA_CHANNEL_STREAM_CHANNEL_H_

#include <cuda_runtime_api.h>

#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "cc/base/cuda/streams.h"
#include "cc/base/status.h"
#include "cc/comm/call/call.h"
#include "cc/comm/call/gpu_path.h"
#include "cc/comm/connect/taking_back.h"
#include "cc/engine/cuda/copy_engine.h"
#include "cc/gpu/cuda/channel/gpu_channel.h"

namespace jax_cxl::comm {

// A channel whose calls the host numbers when it enqueues them on streams, one
// after another. XLA guarantees the same order of calls on all ranks. Kernels
// or copy engines execute the calls. A call that cannot complete stops the
// device, so that XLA never reads a result that is not one.
class StreamChannel final : public GpuChannel {
 public:
  StreamChannel(pool::Pool* pool, Peers* peers, const DeviceOptions& options,
                Group group, PlanStore* plans, cuda::CopyEngine* copy_engine,
                Relay* relay);

  // Allocates this member's part, on the current device, and publishes its
  // place. `incarnation` is as in DeviceConnection::Open. Uses the buffers in
  // `spare`, if there are any. They come from a closed channel with the same
  // number of members, because freeing them would wait for the device's
  // kernels. Fails with kResourceExhausted if the pool has no space; the
  // channel can then be opened later.
  Status Open(Arena* arena, Recorder* recorder, uint64_t incarnation,
              DeviceBuffers* spare);

  // Waits for the other members to open the channel. Warnings and errors
  // describe `call`, the first call. Idempotent.
  Status Connect(const Call& call);

  // Announces a call to the other members. Call it before Enqueue. Returns
  // false if one of them has taken its memory back. The group then needs
  // another channel.
  bool Announce(const Call& call);

  // Enqueues a call after the earlier work of `stream`, and connects first if
  // necessary. GpuCallFacts explains `aside`. Returns the stream on which the
  // call ends. If the call ends on another stream than `stream`, `stream` waits
  // for it, unless `aside` is true.
  Result<cudaStream_t> Enqueue(const Call& call, bool aside,
                               cudaStream_t stream);

  Status Check(Clock::time_point now) override;
  void Abort() override;

  // Returns true once the device has ended all calls.
  bool Idle();

  // Returns true if this member may take its part back: no member uses the
  // channel now or later. Requires that the channel is idle.
  bool TryTake();

  // Gives this member's part back to `arena`. Returns the buffers, for another
  // channel with the same number of members. No other function may be called
  // afterwards.
  DeviceBuffers Close(Arena* arena);

  // When this channel was last used. The owner counts the uses of its channels,
  // and this is the number of the last use.
  uint64_t last_use = 0;

  Stats stats();

 private:
  struct Enqueued {
    Call call;
    bool flagged;
    uint64_t end;  // rounds up to the end of the call, with flags or without
    // If the copy engines execute the call:
    std::optional<cuda::CopyTimes> times;
  };

  // The current series of calls by the copy engines (cuda::CopyEngine).
  struct Series {
    GpuPath path;
    uint64_t begin = 0;   // rounds of all calls before
    int short_calls = 0;  // in a row, at its end
  };

  uint64_t staging_bytes() const;
  // The steps of Enqueue. RecordAndLaunch records a call, or one of the two
  // parts of a ragged_all_to_all. Launch then passes the call to a kernel or to
  // the copy engines, as ChoosePath decides.
  Result<cudaStream_t> RecordAndLaunch(const Call& call, bool aside,
                                       cudaStream_t stream);
  Result<cudaStream_t> Launch(const Call& call, bool aside,
                              cudaStream_t stream);
  Status FollowLast(cudaStream_t stream);
  Status RecordLast();
  GpuCallFacts FactsOf(const Call& call, bool aside) const;
  // Returns true if the call continues the current series of copy-engine calls.
  // Otherwise makes `stream` wait for the earlier calls, and ends the series.
  Result<bool> FollowEarlierCalls(const GpuCallFacts& facts, GpuPath path,
                                  cudaStream_t stream);
  cuda::DeviceCall Prepare(const Call& call, const StoredPlan& stored,
                           const pool::CallDescriptor& descriptor, SlotUse use);
  void TellRelay(const cuda::DeviceCall& call, const StoredPlan& stored,
                 GpuPath path, const cuda::Shape& shape, bool in_series);
  Status LaunchCopies(const cuda::DeviceCall& call,
                      const cuda::GpuPlan& gpu_plan, GpuPath path,
                      cudaStream_t stream);
  Status LaunchKernel(const Call& call, const cuda::DeviceCall& device,
                      const cuda::Shape& shape, cudaStream_t stream);
  Status LaunchFlaggedRound(cuda::DeviceCall call, const StoredPlan& stored,
                            cudaStream_t stream);
  Result<cuda::CopyTimes> TakeTimes();
  Status Note(const Call& call, const pool::CallDescriptor& descriptor,
              const StoredPlan& stored, GpuPath path);

  Status BeginFlagsAnew();
  Result<const StoredPlan*> StoredPlanFor(
      const Call& call, const pool::CallDescriptor& descriptor, GpuPath path);

  // Defined in stream_channel_checks.cc.
  void DropFinished(uint64_t finished);
  Status CheckCalls(Clock::time_point now, uint64_t finished);
  std::vector<int> AtWork(const Enqueued& enqueued) const;
  int LastMember() const;

  cuda::CopyEngine* const copy_engine_;
  std::optional<TakingBack> taking_back_;  // once connected, without a relay
  cuda::Event last_done_;                  // after the last call
  bool last_recorded_ = false;          // true if that event has been recorded
  cudaStream_t last_stream_ = nullptr;  // on which that call ended
  std::optional<Series> series_;
  // These two describe the last call that did not use flags.
  bool last_by_copy_engine_ = false;
  uint32_t last_blocks_ = 0;  // of its kernel; 0: there was none
  // A hash of all calls so far. A rank may finish a call in which it waits for
  // nobody, such as a broadcast from itself, before the hosts have compared
  // that call. So in the next call in which the rank waits, this hash is
  // compared, and covers the earlier calls too.
  uint64_t calls_hash_ = 0;
  uint64_t rounds_ = 0;
  uint64_t flagged_rounds_;
  // The round of the last of these calls that receives from all members. When a
  // later call begins, all members have read the rounds before that round.
  uint64_t heard_rounds_;

  // Both threads use these members.
  uint64_t calls_ = 0;  // number of enqueued calls
  // How many of the `calls_` calls are only the first part of a
  // ragged_all_to_all. Stats do not count them.
  uint64_t parts_of_calls_ = 0;
  // The latest calls. Only the checking side removes those that have finished.
  std::deque<Enqueued> under_way_;
  Stats stats_;
  std::vector<cuda::CopyTimes> free_times_;
  // The events of the last finished call by the copy engines.
  std::optional<cuda::CopyTimes> counted_times_;
  double copying_s_ = 0;

  uint64_t progress_ = 0;  // DeviceWait's, at the last check
};

}  // namespace jax_cxl::comm

#endif  // JAX_CXL_GPU_CUDA_CHANNEL_STREAM_CHANNEL_H_
