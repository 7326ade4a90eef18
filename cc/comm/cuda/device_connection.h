#ifndef JAX_CXL_COMM_CUDA_DEVICE_CONNECTION_H_
#define JAX_CXL_COMM_CUDA_DEVICE_CONNECTION_H_

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "cc/base/status.h"
#include "cc/comm/call/call.h"
#include "cc/comm/call/tuning.h"
#include "cc/comm/connect/arena.h"
#include "cc/comm/health/peers.h"
#include "cc/comm/record/recorder.h"
#include "cc/engine/cuda/device_call.h"
#include "cc/engine/cuda/executor.h"
#include "cc/engine/gpu_plan/gpu_plan.h"
#include "cc/engine/gpu_plan/mirror_words.h"
#include "cc/plan/gpu_geometry.h"
#include "cc/plan/plan.h"
#include "cc/pool/pool.h"

namespace jax_cxl::comm {

// Settings of a job. They must be the same in all of its processes.
struct DeviceOptions {
  uint64_t slot_bytes = 0;  // 0: follows from the pool's size
  int num_slots = 0;        // 0: follows from the number of pool devices
  double warn_after_s = 10;
  double timeout_s = 300;
  cuda::Shape shape;
  // Calls whose larger buffer has at least this many bytes use the copy
  // engines: the calls that DeviceChannel::PathOf names, and, beside
  // computation, all calls. In a pool of several devices, only calls beside
  // computation do.
  uint64_t copy_engine_bytes = uint64_t{64} << 20;
  uint64_t copy_engine_bytes_aside = uint64_t{1} << 20;
  // The most blocks of a kernel that moves rows beside computation. A power of
  // two.
  uint32_t row_blocks_aside = 16;
  // In a pool of one device: the smallest chunk that is worth a round of the
  // copy engines, and the number of their pipelines (0: follows from the call).
  uint64_t copy_min_chunk_bytes = uint64_t{2} << 20;
  int copy_pipelines = 0;
  // The part of a slot that kernels use (0: follows from the number of
  // members), and the smallest chunk that is worth a round, in a pool of one
  // device and of several.
  uint64_t kernel_slot_bytes = 0;
  uint64_t kernel_min_chunk_bytes = uint64_t{512} << 10;
  uint64_t kernel_min_striped_bytes = uint64_t{1} << 20;
  // See plan::IsFlagged. 0: no flags at all.
  uint64_t flagged_bytes = plan::kFlaggedAt55GBps;
  // Tests start shortly before flags start again.
  uint64_t first_flagged_round = 0;
  // Tells channels of the same members apart.
  uint64_t channel_salt = 0;
  // For pools without coherence: the number of a device's threads that relay
  // doorbells and write back and drop lines (0: follows from the machine), the
  // bytes that each thread takes at a time, and whether writes of devices reach
  // the memory without a write-back.
  int flush_threads = 0;
  uint64_t flush_piece_bytes = Tuning().flush_piece_bytes;
  bool gpu_writes_memory = false;
};

// How a call divides the ring into slots. The layouts share memory, so a call
// starts only after every call with another layout has finished.
enum class SlotUse : uint8_t {
  kKernels,    // the beginning of each slot
  kCopies,     // whole slots
  kFewCopies,  // some of them, which stay in a processor's cache
  kPairs,      // two slots as one; of two members, in a pool of one device
};
inline constexpr int kNumSlotUses = 4;

// The memory of one channel between GPUs as one member sees it. Allocates this
// member's part of the pool, publishes its place, and finds the parts of the
// others.
//
// Not thread-safe.
class DeviceConnection {
 public:
  DeviceConnection(pool::Pool* pool, const Peers* peers,
                   const DeviceOptions& options, Group group);

  // Allocates this member's part. Fails with kResourceExhausted.
  Status Open(Arena* arena, Recorder* recorder);

  // Looks for the members that are not found yet. Returns true when all are
  // found. Errors: kMismatch (a member has other slots), kDataLoss (a place
  // outside the pool).
  Result<bool> Connect();
  // Returns the members that are not found yet.
  std::vector<int> Missing() const;

  const Group& group() const { return group_; }
  // The key by which the members find each other's parts.
  uint64_t key() const { return key_; }
  const plan::Geometry& geometry(SlotUse use) const {
    return geometries_[static_cast<int>(use)];
  }
  const cuda::Stripes& stripes() const { return stripes_; }
  const pool::Doorbells& doorbells() const { return doorbells_; }

  // Addresses in this process. Null until connected.
  const std::vector<cuda::MemberView>& members(
      SlotUse use = SlotUse::kKernels) const {
    return use == SlotUse::kPairs ? members_in_pairs_ : members_;
  }
  cuda::DeviceControl* control(int member) const { return controls_[member]; }

  // From now on, devices use these words, one element per member, instead of
  // the words in the pool. Requires that all members are connected.
  void Mirror(cuda::MirrorWords* mirror);

 private:
  void InitializeWords();
  Status PairSlots(int member);

  pool::Pool* pool_;
  const Peers* peers_;
  Group group_;
  uint64_t key_;
  pool::Doorbells doorbells_;
  std::array<plan::Geometry, kNumSlotUses> geometries_;
  cuda::Stripes stripes_;
  pool::ChannelPlace place_ = {};  // of this member's part
  std::vector<cuda::MemberView> members_;
  std::vector<cuda::MemberView> members_in_pairs_;
  std::vector<cuda::DeviceControl*> controls_;
};

}  // namespace jax_cxl::comm

#endif  // JAX_CXL_COMM_CUDA_DEVICE_CONNECTION_H_
