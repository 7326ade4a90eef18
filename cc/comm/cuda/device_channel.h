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

// One GPU's end of one group: enqueues the group's calls on streams, one after
// the other, in the order in which they are enqueued, which XLA makes the same
// on all ranks.
//
// `Enqueue` is called by one thread at a time, `Check` and `Abort` by another;
// what these do is in device_channel_checks.cc.
class DeviceChannel {
 public:
  DeviceChannel(pool::Pool* pool, Peers* peers, const DeviceOptions& options,
                Group group, PlanStore* plans, cuda::CopyEngine* copy_engine,
                Relay* relay);
  ~DeviceChannel();

  // Allocates this member's part, on the current device, and tells the others
  // where it is.
  Status Open(Arena* arena, Recorder* recorder);

  // Waits for the other members to open the channel. Idempotent.
  Status Connect();

  // Enqueues a call; connects first if need be. `aside`: the stream is not
  // XLA's, so that what XLA enqueues on its own behind this call must not hold
  // up the next one.
  Status Enqueue(const Call& call, bool aside, cudaStream_t stream);

  // What keeps a call that is under way from being done: a peer that is gone
  // or gave up, a fault that the device has reported, a disagreement, a
  // deadline. Writes down how far the calls are.
  Status Check(Clock::time_point now);

  // Ends every wait of this channel's calls, and with it the device.
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
    int copy_pipelines = 0;  // of the copy engines; 0: by kernels
    SlotUse slots = SlotUse::kKernels;
  };

  uint64_t staging_bytes() const;
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
  Relay* relay_;  // null: devices use the words of the pool themselves
  uint64_t key_;

  std::atomic<bool> connected_{false};
  DeviceMemory<cuda::MemberView> members_;
  DeviceMemory<cuda::DeviceScratch> scratch_;
  DeviceMemory<std::byte> staging_;  // cuda::CopyEnginePlan's
  PinnedMemory<cuda::DeviceStatus> status_;
  PinnedMemory<cuda::MirrorWords> mirror_;  // with a relay
  std::unique_ptr<ChannelRelay> channel_relay_;
  cudaEvent_t last_done_ = nullptr;  // of the last call
  bool last_recorded_ = false;       // whether that event has been recorded
  cudaStream_t last_stream_ = nullptr;
  bool last_by_copy_engine_ = false;  // of those without flags
  uint64_t rounds_ = 0;
  uint64_t flagged_rounds_;

  mutable std::mutex mutex_;  // what both threads use
  uint64_t calls_ = 0;        // enqueued
  std::array<Enqueued, cuda::kJournal> journal_;
  std::optional<CountedCalls> recorded_;  // once open
  Stats stats_;
  // Calls by the copy engines that may be under way.
  std::deque<TimedCopies> timed_copies_;
  std::vector<cuda::CopyTimes> free_times_;
  double copying_s_ = 0;

  // Used by the checking thread alone.
  uint64_t compared_ = 0;  // calls whose descriptors were equal everywhere
  uint64_t met_ = 0;       // calls that all members have enqueued
  uint64_t seen_finished_ = 0;
  uint64_t seen_started_ = 0;
  Clock::time_point moved_;
  std::optional<Clock::time_point> gone_since_;  // a peer's process
  Clock::time_point last_warning_;
};

}  // namespace jax_cxl::comm

#endif  // JAX_CXL_COMM_CUDA_DEVICE_CHANNEL_H_
