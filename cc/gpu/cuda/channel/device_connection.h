#ifndef JAX_CXL_GPU_CUDA_CHANNEL_DEVICE_CONNECTION_H_
#define JAX_CXL_GPU_CUDA_CHANNEL_DEVICE_CONNECTION_H_

#include <array>
#include <cstdint>
#include <vector>

#include "cc/base/cuda/device_memory.h"
#include "cc/base/status.h"
#include "cc/comm/call/call.h"
#include "cc/comm/call/device_options.h"
#include "cc/comm/call/gpu_path.h"
#include "cc/comm/connect/arena.h"
#include "cc/comm/connect/directory.h"
#include "cc/comm/connect/taking_back.h"
#include "cc/comm/health/peers.h"
#include "cc/engine/cuda/device_call.h"
#include "cc/engine/cuda/executor.h"
#include "cc/engine/gpu_plan/channel_words.h"
#include "cc/engine/gpu_plan/gpu_plan.h"
#include "cc/plan/gpu_geometry.h"
#include "cc/plan/plan.h"
#include "cc/pool/pool.h"

namespace jax_cxl::comm {

// Returns how many bytes of a slot kernels use in a group of this many members.
// DeviceOptions::kernel_slot_bytes can set another number.
uint64_t KernelSlotBytes(const DeviceOptions& options, int members);

// The memory of one channel between GPUs as one member sees it. Each member has
// a part of this memory: its control block and its slots. A DeviceConnection
// allocates this member's part, publishes its place, and finds the parts of the
// others.
//
// Not thread-safe.
class DeviceConnection {
 public:
  DeviceConnection(pool::Pool* pool, const Peers* peers,
                   const DeviceOptions& options, Group group);

  // Allocates this member's part, and publishes its place. Fails with
  // kResourceExhausted, and then allocates nothing. `incarnation` counts how
  // many times the group has begun again because a member had taken its part
  // back.
  Status Open(Arena* arena, uint64_t incarnation);

  void Close(Arena* arena);

  // Looks for the members that are not found yet in this incarnation. Returns
  // true when all are found. Errors: kMismatch (a member has other slots),
  // kDataLoss (a place outside the pool).
  Result<bool> Connect();
  std::vector<int> Missing() const;

  const Group& group() const { return group_; }
  // The key by which the members find each other's parts.
  uint64_t key() const { return key_; }
  const plan::Geometry& geometry(SlotUse use) const {
    return geometries_[static_cast<int>(use)];
  }
  const cuda::Stripes& stripes() const { return stripes_; }
  uint32_t flagged_slot_bytes() const { return flagged_slot_bytes_; }
  const pool::Doorbells& doorbells() const { return doorbells_; }

  // The words and slots of each member, as addresses in this process. The
  // addresses of a member are null until Connect has found it.
  const std::vector<cuda::MemberView>& members() const { return members_; }
  cuda::DeviceControl* control(int member) const { return controls_[member]; }
  const std::vector<cuda::DeviceControl*>& controls() const {
    return controls_;
  }
  // Returns each member's directory entry for this channel. Requires that all
  // members are connected.
  std::vector<TakingBack::Member> Entries() const;
  // Returns a number that changes whenever this member's device makes progress
  // in the pool. The number is a sum of doorbells, whose values only grow. It
  // includes the first `words` doorbells for publications, and the first
  // `words` for releases.
  uint64_t Progress(int words) const;

  // From now on, the device uses the words in `mirror`, which has one element
  // per member, instead of the words in the pool. Requires that all members are
  // connected.
  void Mirror(cuda::MirrorWords* mirror);

 private:
  pool::Pool* pool_;
  const Peers* peers_;
  Group group_;
  uint64_t key_;
  pool::Doorbells doorbells_;
  std::array<plan::Geometry, kNumSlotUses> geometries_;
  cuda::Stripes stripes_;
  const uint32_t flagged_slot_bytes_;
  const uint64_t control_bytes_;
  pool::ChannelPlace place_ = {};  // of this member's part
  int entry_ = -1;                 // of this member's directory
  std::vector<FoundChannel> found_;
  std::vector<cuda::MemberView> members_;
  std::vector<cuda::DeviceControl*> controls_;
};

}  // namespace jax_cxl::comm

#endif  // JAX_CXL_GPU_CUDA_CHANNEL_DEVICE_CONNECTION_H_
