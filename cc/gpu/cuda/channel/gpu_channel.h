#ifndef JAX_CXL_GPU_CUDA_CHANNEL_GPU_CHANNEL_H_
#define JAX_CXL_GPU_CUDA_CHANNEL_GPU_CHANNEL_H_

#include <cuda_runtime_api.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "cc/base/cuda/device_memory.h"
#include "cc/base/status.h"
#include "cc/comm/call/call.h"
#include "cc/comm/call/device_options.h"
#include "cc/comm/call/gpu_path.h"
#include "cc/comm/health/peers.h"
#include "cc/comm/health/wait_monitor.h"
#include "cc/comm/order/journal.h"
#include "cc/comm/record/group_record.h"
#include "cc/engine/cuda/device_call.h"
#include "cc/engine/gpu_plan/channel_words.h"
#include "cc/engine/gpu_plan/gpu_plan.h"
#include "cc/gpu/cuda/channel/device_connection.h"
#include "cc/gpu/cuda/channel/plan_store.h"
#include "cc/gpu/relay/channel_relay.h"
#include "cc/gpu/relay/device_journal.h"
#include "cc/gpu/relay/flagged_relay.h"
#include "cc/gpu/relay/relay.h"
#include "cc/pool/pool.h"

namespace jax_cxl::comm {

// Returns the error of a call after Abort.
Status EarlierFailure();

// The buffers of a channel that are not in the pool.
struct DeviceBuffers {
  DeviceMemory<cuda::MemberView> members;
  DeviceMemory<cuda::DeviceScratch> scratch;
  PinnedMemory<cuda::DeviceStatus> status;
  PinnedMemory<cuda::MirrorWords> mirror;  // with a relay
  DeviceMemory<std::byte> staging;         // cuda::CopyEnginePlan's
};

// One GPU as a member of one group. The host numbers the calls of a
// StreamChannel, and the device those of a CountedChannel. This class has
// everything else.
//
// One thread at a time may open and connect a channel and enqueue calls.
// Meanwhile another thread may call Check, Abort and stats, one after another.
class GpuChannel {
 public:
  virtual ~GpuChannel() = default;
  GpuChannel(const GpuChannel&) = delete;
  GpuChannel& operator=(const GpuChannel&) = delete;

  // Returns the reason why a call under way cannot complete: a peer that is
  // lost or has given up, a fault that the device has reported, a mismatch, or
  // a deadline. Also records the progress of the calls.
  virtual Status Check(Clock::time_point now) = 0;

  // Ends every wait of this channel's calls.
  virtual void Abort();

  int members_count() const {
    return static_cast<int>(connection_.members().size());
  }

 protected:
  // `relay` is null if devices use the words of the pool. Otherwise it must end
  // before this object does.
  GpuChannel(pool::Pool* pool, Peers* peers, const DeviceOptions& options,
             Group group, PlanStore* plans, Relay* relay);

  // Reads a word that the device writes.
  template <typename T>
  static T Read(T& word) {
    return std::atomic_ref(word).load(std::memory_order_acquire);
  }

  // Allocates those of `buffers_` that are missing, on the current device, and
  // initializes all of them.
  Status Allocate(uint64_t staging_bytes);
  // Allocates this member's part, and publishes its place. `incarnation` is as
  // in DeviceConnection::Open.
  Status OpenPart(Arena* arena, Recorder* recorder, uint64_t incarnation);
  // Call it once `connection_` has found all members. With a relay, the relay
  // follows `device_journal`, if there is one.
  Status FinishConnecting(DeviceJournal* device_journal = nullptr);

  std::string PlanKey(const pool::CallDescriptor& descriptor) const;
  // Returns the plan of a short call, whose data carry flags. Returns no plan
  // if the call is too long for flags, or if it moves rows.
  Result<std::optional<cuda::GpuPlan>> MakeFlaggedPlan(
      const plan::Request& request) const;
  Result<cuda::GpuPlan> MakeSlotPlan(const plan::Request& request,
                                     SlotUse use) const;
  // Returns a call in the form in which the device executes it, without its
  // numbers.
  cuda::DeviceCall MakeDeviceCall(const Call& call, const StoredPlan& stored,
                                  SlotUse use) const;

  // Describes the wait of the call at `place`, except for the members at work.
  // No earlier call is under way.
  DeviceWait WaitOf(const Call& call, uint64_t place) const;
  // Returns the reason why the call at `place` cannot complete. This member has
  // written down `written` calls.
  Status CheckWait(const DeviceWait& wait, uint64_t place, uint64_t written,
                   Clock::time_point now);

  cuda::DeviceStatus& status() const { return *buffers_.status.get(); }
  cuda::DeviceControl& own_control() const {
    return *connection_.control(connection_.group().self);
  }

  pool::Pool* const pool_;
  Peers* const peers_;
  const DeviceOptions options_;
  DeviceConnection connection_;
  PlanStore* const plans_;
  Relay* const relay_;
  WaitMonitor waits_;
  DeviceBuffers buffers_;

  std::atomic<bool> connected_{false};
  std::unique_ptr<Journal> journal_;   // once connected
  std::optional<FlaggedRings> rings_;  // once connected

  mutable std::mutex mutex_;             // for members that both threads use
  std::optional<GroupRecord> recorded_;  // once open
  std::unique_ptr<ChannelRelay> channel_relay_;  // once connected
};

}  // namespace jax_cxl::comm

#endif  // JAX_CXL_GPU_CUDA_CHANNEL_GPU_CHANNEL_H_
