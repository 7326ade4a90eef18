#ifndef JAX_CXL_COMM_CUDA_DEVICE_CHANNEL_H_
#define JAX_CXL_COMM_CUDA_DEVICE_CHANNEL_H_

#include <cuda_runtime_api.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "cc/base/status.h"
#include "cc/comm/call/call.h"
#include "cc/comm/call/stats.h"
#include "cc/comm/cuda/device_connection.h"
#include "cc/comm/cuda/device_memory.h"
#include "cc/comm/cuda/plan_store.h"
#include "cc/comm/health/peers.h"
#include "cc/comm/record/counted_calls.h"
#include "cc/comm/relay/channel_relay.h"
#include "cc/comm/relay/relay.h"
#include "cc/engine/cuda/copy_engine.h"
#include "cc/pool/pool.h"

namespace jax_cxl::comm {

// One GPU's part in one group. Enqueues the group's calls on streams, one after
// another. XLA makes the order of calls the same on all ranks.
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
  // place.
  Status Open(Arena* arena, Recorder* recorder);

  // Waits for the other members to open the channel. Idempotent.
  Status Connect();

  // Enqueues a call, and connects first if necessary. `aside` is true if the
  // stream is not XLA's. Work that XLA enqueues after this call on its own
  // stream must then not delay the next call.
  Status Enqueue(const Call& call, bool aside, cudaStream_t stream);

  // Returns the reason why a call under way cannot complete: a peer that is
  // lost or has given up, a fault that the device has reported, a mismatch, or
  // a deadline. Also records the progress of the calls.
  Status Check(Clock::time_point now);

  // Ends every wait of this channel's calls, which stops the device.
  void Abort();

  Stats stats();

 private:
  struct Enqueued {
    pool::CallDescriptor descriptor;
    std::string name;
  };
  struct TimedCopies {
    uint64_t call;
    cuda::CopyTimes times;
  };

  // How a call is executed.
  struct Path {
    int copy_pipelines = 0;  // pipelines of the copy engines; 0: kernels
    SlotUse slots = SlotUse::kKernels;
  };

  uint64_t staging_bytes() const;
  Status EnqueueOne(const Call& call, bool aside, cudaStream_t stream);
  Status EnqueueRecorded(const Call& call, bool aside, cudaStream_t stream);
  Status FollowLast(cudaStream_t stream);
  Status UploadMembers();
  Status OpenRelay();
  cuda::DeviceCall Prepare(const Call& call, const StoredPlan& gpu_plan,
                           const pool::CallDescriptor& descriptor,
                           SlotUse use) const;
  void EnqueueRelay(const cuda::DeviceCall& call, const StoredPlan& gpu_plan,
                    Path path, const cuda::Shape& shape);
  cudaError_t LaunchFlagged(cuda::DeviceCall call, const StoredPlan& gpu_plan,
                            cudaStream_t stream);
  Result<cuda::CopyTimes> TakeTimes(uint64_t place);
  void Note(const Call& call, const pool::CallDescriptor& descriptor);

  // In device_channel_plans.cc.
  Path PathOf(const Call& call, bool aside) const;
  cuda::Shape ShapeOf(const Call& call) const;
  Result<std::optional<cuda::GpuPlan>> MakeFlaggedPlan(
      const plan::Request& request) const;
  Result<const StoredPlan*> StoredPlanFor(
      const Call& call, const pool::CallDescriptor& descriptor, Path path,
      cudaStream_t stream);

  // In device_channel_checks.cc.
  void AddTimes(uint64_t finished);
  void RecordWait(uint64_t call, int member);
  std::string InCall(uint64_t call) const;
  Status CompareJournals();
  Status CheckCalls(Clock::time_point now, uint64_t finished);
  int WaitingFor(uint64_t finished, double waited_s) const;

  pool::Pool* pool_;
  Peers* peers_;
  DeviceOptions options_;
  DeviceConnection connection_;
  PlanStore* plans_;
  cuda::CopyEngine* copy_engine_;
  Relay* relay_;  // null: devices use the words of the pool
  uint64_t key_;

  std::atomic<bool> connected_{false};
  DeviceMemory<cuda::MemberView> members_;
  DeviceMemory<cuda::DeviceScratch> scratch_;
  DeviceMemory<std::byte> staging_;  // cuda::CopyEnginePlan's
  PinnedMemory<cuda::DeviceStatus> status_;
  PinnedMemory<cuda::MirrorWords> mirror_;  // with a relay
  std::unique_ptr<ChannelRelay> channel_relay_;
  cudaEvent_t last_done_ = nullptr;  // event after the last call
  bool last_recorded_ = false;       // true if that event has been recorded
  cudaStream_t last_stream_ = nullptr;
  bool last_by_copy_engine_ = false;  // the last call without flags
  uint64_t rounds_ = 0;
  uint64_t flagged_rounds_;

  mutable std::mutex mutex_;  // for members that both threads use
  uint64_t calls_ = 0;        // number of enqueued calls
  std::array<Enqueued, cuda::kJournal> journal_;
  std::optional<CountedCalls> recorded_;  // once open
  Stats stats_;
  // Copy-engine calls that may be under way.
  std::deque<TimedCopies> timed_copies_;
  std::vector<cuda::CopyTimes> free_times_;
  double copying_s_ = 0;

  // Only the checking thread uses the following members.
  uint64_t compared_ = 0;  // calls whose descriptors all members share
  uint64_t met_ = 0;       // calls that all members have enqueued
  uint64_t seen_finished_ = 0;
  uint64_t seen_started_ = 0;
  Clock::time_point moved_;
  std::optional<Clock::time_point>
      gone_since_;  // when a peer's process was seen to have ended
  Clock::time_point last_warning_;
};

}  // namespace jax_cxl::comm

#endif  // JAX_CXL_COMM_CUDA_DEVICE_CHANNEL_H_
