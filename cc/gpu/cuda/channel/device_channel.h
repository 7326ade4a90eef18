#ifndef JAX_CXL_GPU_CUDA_CHANNEL_DEVICE_CHANNEL_H_
#define JAX_CXL_GPU_CUDA_CHANNEL_DEVICE_CHANNEL_H_

#include <cuda_runtime_api.h>

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "cc/base/cuda/device_memory.h"
#include "cc/base/status.h"
#include "cc/comm/call/call.h"
#include "cc/comm/call/device_options.h"
#include "cc/comm/call/gpu_path.h"
#include "cc/comm/call/stats.h"
#include "cc/comm/connect/taking_back.h"
#include "cc/comm/health/device_waits.h"
#include "cc/comm/health/peers.h"
#include "cc/comm/order/journal.h"
#include "cc/comm/record/group_record.h"
#include "cc/engine/cuda/copy_engine.h"
#include "cc/gpu/cuda/channel/device_connection.h"
#include "cc/gpu/cuda/channel/plan_store.h"
#include "cc/gpu/relay/channel_relay.h"
#include "cc/gpu/relay/flagged_rings.h"
#include "cc/gpu/relay/relay.h"
#include "cc/pool/pool.h"

namespace jax_cxl::comm {

// The buffers of a channel that are not in the pool. New channels reuse the
// buffers of closed ones, because freeing buffers would wait for the kernels of
// the device.
struct DeviceBuffers {
  DeviceMemory<cuda::MemberView> members;
  DeviceMemory<cuda::DeviceScratch> scratch;
  DeviceMemory<std::byte> staging;
  PinnedMemory<cuda::DeviceStatus> status;
};

// One GPU as a member of one group. Enqueues the group's calls on streams, one
// after another. XLA guarantees the same order of calls on all ranks.
//
// One thread at a time may call `Enqueue`, and another thread `Check` and
// `Abort` (device_channel_checks.cc).
class DeviceChannel {
 public:
  DeviceChannel(pool::Pool* pool, Peers* peers, const DeviceOptions& options,
                Group group, PlanStore* plans, cuda::CopyEngine* copy_engine,
                Relay* relay);
  ~DeviceChannel();

  // Allocates this member's part, on the current device, and publishes its
  // place. `incarnation` is as in DeviceConnection::Open. Uses the buffers in
  // `spare`, if there are any. They come from an earlier channel with the same
  // number of members. Fails with kResourceExhausted if the pool has no space;
  // the channel can then be opened later.
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

  // Returns the reason why a call under way cannot complete: a peer that is
  // lost or has given up, a fault that the device has reported, a mismatch, or
  // a deadline. Also records the progress of the calls.
  Status Check(Clock::time_point now);

  // Ends every wait of this channel's calls, which stops the device.
  void Abort();

  // Returns true once the device has ended all calls.
  bool Idle();

  // Returns true if this member may take its part back: no member uses the
  // channel now or later. Requires that the channel is idle.
  bool TryTake();

  // Gives this member's part back to `arena`. Returns the buffers, for another
  // channel with the same number of members. No other function may be called
  // afterwards.
  DeviceBuffers Close(Arena* arena);

  int members_count() const {
    return static_cast<int>(connection_.members().size());
  }
  // When this channel was last used. The owner counts the uses of its channels,
  // and this is the number of the last use.
  uint64_t last_use = 0;

  Stats stats();

 private:
  struct Enqueued {
    Call call;
    bool flagged;
    uint64_t end;  // rounds up to the end of the call, with flags or without
  };
  struct TimedCopies {
    uint64_t call;
    cuda::CopyTimes times;
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
  bool StartsNewLayout(const cuda::Shape& shape) const;
  cuda::DeviceCall Prepare(const Call& call, const StoredPlan& gpu_plan,
                           const pool::CallDescriptor& descriptor, SlotUse use);
  void TellRelay(const cuda::DeviceCall& call, const StoredPlan& gpu_plan,
                 GpuPath path, const cuda::Shape& shape, bool in_series);
  Status LaunchCopies(const cuda::DeviceCall& call, const StoredPlan& gpu_plan,
                      GpuPath path, cudaStream_t stream);
  Status LaunchKernel(const Call& call, const cuda::DeviceCall& device,
                      const cuda::Shape& shape, cudaStream_t stream);
  Status LaunchFlagged(cuda::DeviceCall call, const StoredPlan& gpu_plan,
                       cudaStream_t stream);
  Result<cuda::CopyTimes> TakeTimes(uint64_t place);
  void Note(const Call& call, const pool::CallDescriptor& descriptor,
            const StoredPlan& gpu_plan);

  // Defined in device_channel_opening.cc, like Open and Connect.
  Status FinishConnecting();
  Status BeginFlagsAnew();
  void OpenRings();
  Status OpenRelay();

  Result<const StoredPlan*> StoredPlanFor(
      const Call& call, const pool::CallDescriptor& descriptor, GpuPath path);

  // Defined in device_channel_checks.cc.
  void AddTimes(uint64_t finished);
  const Enqueued* OldestUnderWay(uint64_t finished);
  Status CheckCalls(Clock::time_point now, uint64_t finished);
  uint64_t ProgressOf(uint64_t finished, uint64_t started) const;
  std::vector<int> AtWork(const Enqueued& enqueued) const;
  int WaitingFor(uint64_t finished, bool moved) const;
  int LastMember() const;

  pool::Pool* pool_;
  Peers* peers_;
  DeviceOptions options_;
  DeviceConnection connection_;
  PlanStore* plans_;
  cuda::CopyEngine* copy_engine_;
  Relay* relay_;  // null: devices use the words of the pool
  uint64_t key_;
  // Used by Connect until the channel is connected, and then by Check.
  DeviceWaits waits_;

  std::atomic<bool> connected_{false};
  std::unique_ptr<Journal> journal_;       // once connected
  std::optional<FlaggedRings> rings_;      // once connected
  std::optional<TakingBack> taking_back_;  // once connected
  DeviceMemory<cuda::MemberView> members_;
  DeviceMemory<cuda::DeviceScratch> scratch_;
  DeviceMemory<std::byte> staging_;  // cuda::CopyEnginePlan's
  PinnedMemory<cuda::DeviceStatus> status_;
  PinnedMemory<cuda::MirrorWords> mirror_;  // with a relay
  std::unique_ptr<ChannelRelay> channel_relay_;
  cudaEvent_t last_done_ = nullptr;     // event after the last call
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

  mutable std::mutex mutex_;  // for members that both threads use
  uint64_t calls_ = 0;        // number of enqueued calls
  // How many of the `calls_` calls are only the first part of a
  // ragged_all_to_all. Stats do not count them.
  uint64_t parts_of_calls_ = 0;
  // The latest calls. Only Check removes those that have finished.
  std::deque<Enqueued> under_way_;
  std::optional<GroupRecord> recorded_;  // once open
  Stats stats_;
  // Copy-engine calls that may be under way.
  std::deque<TimedCopies> timed_copies_;
  std::vector<cuda::CopyTimes> free_times_;
  std::optional<cuda::CopyTimes> counted_times_;  // of the last finished one
  double copying_s_ = 0;

  // Only the checking thread uses the following members.
  uint64_t progress_ = 0;  // see ProgressOf
};

}  // namespace jax_cxl::comm

#endif  // JAX_CXL_GPU_CUDA_CHANNEL_DEVICE_CHANNEL_H_
