#ifndef JAX_CXL_COMM_CUDA_DEVICE_CONNECTION_H_
#define JAX_CXL_COMM_CUDA_DEVICE_CONNECTION_H_

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "cc/base/status.h"
#include "cc/comm/call/call.h"
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

// What every process of a job must set alike, and how long it waits.
struct DeviceOptions {
  uint64_t slot_bytes = 0;  // 0: follows from the pool's size
  int num_slots = 0;        // 0: follows from the number of pool devices
  double warn_after_s = 10;
  double timeout_s = 300;
  cuda::Shape shape;
  // Calls whose larger buffer has at least this many bytes go by the copy
  // engines: those of DeviceChannel::PathOf, and, beside compute, all. In a
  // pool of several devices only those beside compute do.
  uint64_t copy_engine_bytes = uint64_t{64} << 20;
  uint64_t copy_engine_bytes_aside = uint64_t{6} << 20;
  // What kernels use of a slot (0: follows from the number of members), and the
  // least that is worth a round in a pool of one device, and of several.
  uint64_t kernel_slot_bytes = 0;
  uint64_t kernel_min_chunk_bytes = uint64_t{512} << 10;
  uint64_t kernel_min_striped_bytes = uint64_t{1} << 20;
  // See plan::IsFlagged; 0 for no flags at all.
  uint64_t flagged_bytes = plan::kFlaggedAt55GBps;
  // Tests start shortly before flags begin anew.
  uint64_t first_flagged_round = 0;
  // In pools that nobody keeps coherent: threads of a device that pass
  // doorbells on, write back and drop lines (0: follows from the machine), and
  // whether what devices write reaches the memory without being written back.
  int flush_threads = 0;
  bool gpu_writes_memory = false;
};

// What a call takes for the slots of a ring. Pieces of other sizes lie in the
// same memory: nothing of a call by the one is left when a call by another
// begins.
enum class SlotUse : uint8_t {
  kKernels,    // the beginning of each slot
  kCopies,     // whole slots
  kFewCopies,  // some of them, which stay in a processor's cache
  kPairs,      // two slots as one; of two members, in a pool of one device
};
inline constexpr int kNumSlotUses = 4;

// The memory of one channel between GPUs as one member sees it: allocates this
// member's part of the pool, tells the others where it is, and finds theirs.
//
// Not thread-safe.
class DeviceConnection {
 public:
  DeviceConnection(pool::Pool* pool, const Peers* peers,
                   const DeviceOptions& options, Group group);

  // Errors: kResourceExhausted.
  Status Open(Arena* arena, Recorder* recorder);

  // Looks for the members that were not found yet; true when all were.
  // Errors: kMismatch (other slots), kDataLoss (a place outside the pool).
  Result<bool> Connect();
  // A member yet to be found, -1 for none.
  int Missing() const;

  const Group& group() const { return group_; }
  // What the members find each other's parts by.
  uint64_t key() const { return key_; }
  const plan::Geometry& geometry(SlotUse use) const {
    return geometries_[static_cast<int>(use)];
  }
  const cuda::Stripes& stripes() const { return stripes_; }
  const pool::Doorbells& doorbells() const { return doorbells_; }

  // Addresses of this process; nulls until connected.
  const std::vector<cuda::MemberView>& members(
      SlotUse use = SlotUse::kKernels) const {
    return use == SlotUse::kPairs ? members_in_pairs_ : members_;
  }
  cuda::DeviceControl* control(int member) const { return controls_[member]; }

  // From now on devices use these words, one element a member, instead of those
  // in the pool. Once connected.
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
