#ifndef JAX_CXL_ENGINE_CUDA_FLAGGED_FLAGGED_UNITS_CUH_
#define JAX_CXL_ENGINE_CUDA_FLAGGED_FLAGGED_UNITS_CUH_

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "cc/engine/cuda/block.cuh"
#include "cc/engine/cuda/device_call.h"
#include "cc/engine/cuda/device_memory.cuh"
#include "cc/engine/gpu_plan/flagged_ring.h"
#include "cc/engine/gpu_plan/gpu_plan.h"

// The parts of the kernel for short messages (flagged.h): the steps of a call,
// the units of data that its threads share, the place of a unit and its flags
// in the ring, and a thread's wait for a unit.
namespace jax_cxl::cuda::flagged {

// Threads of a block that move data. A block has two more warps. One of them
// watches the peers' calls. The other one writes the journal, and notes what
// the peers have read. No other warp waits for the journal or for these notes.
inline constexpr uint32_t kThreads = 512;
inline constexpr uint32_t kBlockThreads = kThreads + 64;

// Returns how many blocks to launch for this many units: enough that each
// thread has little to do.
inline uint32_t BlocksFor(uint64_t units) {
  constexpr uint64_t kMost = 32;
  return static_cast<uint32_t>(
      std::clamp<uint64_t>((units + kThreads - 1) / kThreads, 1, kMost));
}

// A step of a short message, whose offsets are small. The fields have the same
// meaning as in DeviceStep.
struct ShortStep {
  uint16_t kind;
  uint8_t first, last;
  uint32_t from, input_from, to, bytes;

  __device__ bool Is(DeviceStepKind other) const {
    return kind == static_cast<uint16_t>(other);
  }
};
static_assert(kMaxMembers <= 64);  // bits of Task::sources

// The lists of a call: the rings of its members, and its steps. They are launch
// arguments: if they were in the device's memory, each list would cost a load
// before the load of the data.
template <uint32_t kMembers, uint32_t kSteps>
struct Lists {
  uint64_t sources;  // see Task
  FlaggedControl* rings[kMembers];
  ShortStep steps[kSteps];  // sending steps, then receiving steps
};
using FewLists = Lists<8, 24>;
using AllLists = Lists<kMaxMembers, kMaxSteps>;
// Arguments of more than 4 KiB would need a driver of CUDA 12.1 or later.
static_assert(sizeof(DeviceCall) + sizeof(AllLists) <= 4096);

// A call and its lists. The functions below take a Task, so that they work with
// lists of any length.
struct Task {
  const DeviceCall& call;
  FlaggedControl* const* rings;
  const ShortStep* sending;
  uint32_t num_sending;
  const ShortStep* receiving;
  uint32_t num_receiving;
  uint64_t sources;  // members from which this one receives, one bit each
};

__device__ inline uint32_t FlagOf(const DeviceCall& call) {
  return FlagOf(call.base_round);
}

// Returns the word by which a member shows that it is in this call. It never
// equals the contents of a word that nobody has written.
__device__ inline uint64_t ExpectedCall(const DeviceCall& call) {
  return CallWord(call.base_round + 1, call.hash);
}

__device__ inline uint32_t SlotOf(const DeviceCall& call) {
  return static_cast<uint32_t>(SlotOf(call.base_round));
}

// The place of a unit of a member's data in the member's ring.
struct UnitVectors {
  std::byte* low;
  std::byte* high;

  // `at` is a byte offset in the slot.
  __device__ UnitVectors(const Task& task, int member, uint64_t at) {
    std::byte* slot = task.rings[member]->vectors[0] +
                      SlotOf(task.call) * plan::kFlaggedExpansion *
                          task.call.flagged_slot_bytes;
    low = slot + LowVector(at / kUnitBytes);
    high = slot + HighVector(at / kUnitBytes);
  }

  __device__ void Store(uint4 v, uint32_t flag) const {
    StoreVolatile(low, make_uint4(v.x, flag, v.y, flag));
    StoreVolatile(high, make_uint4(v.z, flag, v.w, flag));
  }
};

// A unit that may not have arrived yet.
struct Arriving {
  uint4 low, high;

  Arriving() = default;
  __device__ explicit Arriving(const UnitVectors& vectors)
      : low(LoadSlot(vectors.low)), high(LoadSlot(vectors.high)) {}
  __device__ bool Has(uint32_t flag) const {
    return low.y == flag && low.w == flag && high.y == flag && high.w == flag;
  }
  __device__ uint4 Data() const {
    return make_uint4(low.x, low.z, high.x, high.z);
  }
};

// The state that the threads of a block share.
struct Shared {
  uint32_t gave_up;   // see BlockState
  uint64_t released;  // rounds that all peers have certainly read
};

// One thread's wait for data. From time to time it checks whether the call can
// continue.
class Wait {
 public:
  __device__ Wait(const DeviceCall& call, Shared& shared)
      : call_(call), shared_(shared) {}

  // Call it after a poll that found nothing from `member`. Returns false when
  // the call cannot continue.
  __device__ bool GoOn(int member) {
    if (++polls_ % kPollsPerCheck != 0) return true;
    const volatile DeviceStatus* status = call_.status;
    if (LoadAcquireBlock(&shared_.gave_up) != 0) return false;
    const uint64_t now = NowNs();
    if (start_ == 0) start_ = now;
    if (status->abort == 0 && now - start_ <= call_.timeout_ns) return true;
    if (status->abort == 0) Report(call_.status, DeviceFault::kTimeout, member);
    StoreReleaseBlock(&shared_.gave_up, 1);
    return false;
  }

 private:
  static constexpr uint32_t kPollsPerCheck = 64;

  const DeviceCall& call_;
  Shared& shared_;
  uint32_t polls_ = 0;
  uint64_t start_ = 0;
};

// Waits for a unit of `member`, and sets `*data`. Returns false when the call
// cannot continue.
__device__ __forceinline__ bool Await(const Task& task, Shared& shared,
                                      int member, uint64_t at, uint4* data) {
  const UnitVectors vectors(task, member, at);
  Wait wait(task.call, shared);
  for (;;) {
    const Arriving arriving(vectors);
    if (arriving.Has(FlagOf(task.call))) {
      *data = arriving.Data();
      return true;
    }
    if (!wait.GoOn(member)) return false;
  }
}

// This thread's part of all units of the steps of one kind. The threads of all
// blocks share the units evenly.
class Units {
 public:
  __device__ Units(const ShortStep* steps, uint32_t num_steps,
                   DeviceStepKind kind)
      : steps_(steps), num_steps_(num_steps), kind_(kind) {
    Find();
  }

  // Returns true if a unit is left.
  __device__ bool has() const { return at_ < num_steps_; }
  // The current unit: its step, its offset in the step, and the bytes left.
  __device__ const ShortStep& step() const { return steps_[at_]; }
  __device__ uint32_t i() const { return (unit_ - first_) * kUnitBytes; }
  __device__ uint32_t left() const { return step().bytes - i(); }

  __device__ void Next() {
    unit_ += gridDim.x * kThreads;
    Find();
  }

 private:
  __device__ void Find() {
    for (; at_ < num_steps_; ++at_) {
      const uint32_t units =
          steps_[at_].Is(kind_) ? NumUnits(steps_[at_].bytes) : 0;
      if (unit_ < first_ + units) return;
      first_ += units;
    }
  }

  const ShortStep* steps_;
  const uint32_t num_steps_;
  const DeviceStepKind kind_;
  uint32_t unit_ = blockIdx.x * kThreads + threadIdx.x;
  uint32_t at_ = 0;
  uint32_t first_ = 0;  // first unit of step `at_`
};

}  // namespace jax_cxl::cuda::flagged

#endif  // JAX_CXL_ENGINE_CUDA_FLAGGED_FLAGGED_UNITS_CUH_
