#include <algorithm>

#include "cc/engine/cuda/block.cuh"
#include "cc/engine/cuda/device_memory.cuh"
#include "cc/engine/cuda/element_types.cuh"
#include "cc/engine/cuda/flagged.h"
#include "cc/engine/cuda/progress.cuh"

namespace jax_cxl::cuda {
namespace {

constexpr uint32_t kThreads = 512;  // that move data; one more warp watches
constexpr uint32_t kMaxBlocksUsed = 32;
constexpr uint64_t kUnitBytes = 16;  // of data: what a thread moves at once

// Steps of both lanes, which a block keeps in its shared memory.
constexpr uint32_t kMaxSteps = 2 * kMaxMembers + 8;

__host__ __device__ constexpr uint64_t Units(uint64_t bytes) {
  return (bytes + kUnitBytes - 1) / kUnitBytes;
}

__device__ uint32_t FlagOf(const DeviceCall& call) {
  return static_cast<uint32_t>(call.base_round + 1);
}

// Not that of a word nobody has written yet.
__device__ uint64_t ExpectedCall(const DeviceCall& call) {
  return CallWord(call.base_round + 1, call.hash);
}

__device__ uint32_t SlotOf(const DeviceCall& call) {
  return static_cast<uint32_t>(call.base_round % kFlaggedSlots);
}

// Where a unit of a member's data lies in the ring, as two lines. Neighbours
// lie side by side with their first lines, and with their second ones, so that
// a warp's loads and stores fill whole lines of the link.
struct UnitLines {
  static constexpr uint64_t kGroup = 32;  // units

  std::byte* low;
  std::byte* high;

  // `at`: byte of the slot.
  __device__ UnitLines(const DeviceCall& call, int member, uint64_t at) {
    const uint64_t unit = at / kUnitBytes;
    low = call.members[member].flagged->lines[SlotOf(call)] +
          (unit / kGroup * kGroup * 2 + unit % kGroup) * kLineBytes;
    high = low + kGroup * kLineBytes;
  }

  __device__ void Store(uint4 v, uint32_t flag) const {
    StoreVolatile(low, make_uint4(v.x, flag, v.y, flag));
    StoreVolatile(high, make_uint4(v.z, flag, v.w, flag));
  }

 private:
  static constexpr uint64_t kLineBytes = 16;
};
static_assert(plan::kFlaggedBytes % (UnitLines::kGroup * kUnitBytes) == 0);

// A unit that may not be there yet.
struct Arriving {
  uint4 low, high;

  __device__ explicit Arriving(const UnitLines& lines)
      : low(LoadSlot(lines.low)), high(LoadSlot(lines.high)) {}
  __device__ bool Has(uint32_t flag) const {
    return low.y == flag && low.w == flag && high.y == flag && high.w == flag;
  }
  __device__ uint4 Data() const {
    return make_uint4(low.x, low.z, high.x, high.z);
  }
};

// What the threads of a block share.
struct Shared {
  DeviceStep steps[kMaxSteps];
  uint32_t gave_up;   // see BlockState
  uint64_t released;  // rounds that all peers are known to have read
};

// One thread's wait for data: when it has lasted, looks whether to go on.
class Wait {
 public:
  __device__ Wait(const DeviceCall& call, Shared& shared)
      : call_(call), shared_(shared) {}

  // After a look in vain for what `member` sends.
  __device__ bool GoOn(int member) {
    if (++looks_ % kLooksPerCheck != 0) return true;
    const volatile DeviceStatus* status = call_.status;
    if (Told(&shared_.gave_up) != 0) return false;
    const uint64_t now = NowNs();
    if (start_ == 0) start_ = now;
    if (status->abort == 0 && now - start_ <= call_.timeout_ns) return true;
    if (status->abort == 0) Report(call_.status, DeviceFault::kTimeout, member);
    Tell(&shared_.gave_up, 1);
    return false;
  }

 private:
  static constexpr uint32_t kLooksPerCheck = 64;

  const DeviceCall& call_;
  Shared& shared_;
  uint32_t looks_ = 0;
  uint64_t start_ = 0;
};

// Calls visit(step, unit) for this thread's part of all units of the steps of
// one kind, which the threads of all blocks share evenly. Ends early, with
// false, where visit returns false.
template <typename Visit>
__device__ bool EachUnit(const DeviceStep* steps, uint32_t num_steps,
                         DeviceStepKind kind, const Visit& visit) {
  uint32_t at = 0;
  uint64_t first = 0;  // unit of step `at`
  for (uint64_t unit = blockIdx.x * kThreads + threadIdx.x;;
       unit += gridDim.x * kThreads) {
    for (; at < num_steps; ++at) {
      const uint64_t units =
          steps[at].kind == kind ? Units(steps[at].bytes) : 0;
      if (unit < first + units) break;
      first += units;
    }
    if (at == num_steps) return true;
    if (!visit(steps[at], (unit - first) * kUnitBytes)) return false;
  }
}

__device__ bool Get(const DeviceCall& call, Shared& shared,
                    const DeviceStep& step, uint64_t i) {
  const UnitLines lines(call, step.first, step.from + i);
  Wait wait(call, shared);
  for (;;) {
    const Arriving arriving(lines);
    if (arriving.Has(FlagOf(call))) {
      StoreLocal(call.output + step.to + i, arriving.Data(), step.bytes - i);
      return true;
    }
    if (!wait.GoOn(step.first)) return false;
  }
}

// Sources whose units are under way at once.
constexpr int kSources = 4;

template <typename Type>
__device__ __noinline__ bool Reduce(const DeviceCall& call, Shared& shared,
                                    const DeviceStep& step, uint64_t i) {
  const uint32_t flag = FlagOf(call);
  ElementFold<Type> fold;
  uint4 single = {};
  Wait wait(call, shared);
  for (int first = step.first; first < step.last; first += kSources) {
    uint4 values[kSources];
    for (int late = first; late >= 0;) {
      late = -1;
#pragma unroll
      for (int k = 0; k < kSources; ++k) {
        const int member = first + k;
        if (member >= step.last) continue;
        if (member == call.self) {
          values[k] =
              LoadLocal(call.input + step.input_from + i, step.bytes - i);
          continue;
        }
        const Arriving arriving(UnitLines(call, member, step.from + i));
        values[k] = arriving.Data();
        if (!arriving.Has(flag)) late = member;
      }
      if (late >= 0 && !wait.GoOn(late)) return false;
    }
#pragma unroll
    for (int k = 0; k < kSources; ++k) {
      if (first + k >= step.last) continue;
      if (first + k == step.first) {
        fold.Begin(values[k]);
        single = values[k];
      } else {
        fold.Add(call.reduce_op, values[k]);
      }
    }
  }
  // A single source is copied, NaNs and all.
  StoreLocal(call.output + step.to + i,
             step.last - step.first == 1 ? single : fold.Result(),
             step.bytes - i);
  return true;
}

// What all data threads do, behind the puts.
__device__ bool Receive(const DeviceCall& call, Shared& shared) {
  const DeviceStep* sending = shared.steps;
  const DeviceStep* receiving = sending + call.num_sending;
  EachUnit(sending, call.num_sending, DeviceStepKind::kCopy,
           [&](const DeviceStep& step, uint64_t i) {
             StoreLocal(call.output + step.to + i,
                        LoadLocal(call.input + step.from + i, step.bytes - i),
                        step.bytes - i);
             return true;
           });
  EachUnit(sending, call.num_sending, DeviceStepKind::kZero,
           [&](const DeviceStep& step, uint64_t i) {
             StoreLocal(call.output + step.to + i, make_uint4(0, 0, 0, 0),
                        step.bytes - i);
             return true;
           });
  return EachUnit(receiving, call.num_receiving, DeviceStepKind::kGet,
                  [&](const DeviceStep& step, uint64_t i) {
                    return Get(call, shared, step, i);
                  }) &&
         EachUnit(receiving, call.num_receiving, DeviceStepKind::kReduce,
                  [&](const DeviceStep& step, uint64_t i) {
                    return WithElementType(call.dtype, [&]<typename Type>() {
                      return Reduce<Type>(call, shared, step, i);
                    });
                  });
}

__device__ void Put(const DeviceCall& call, const Shared& shared) {
  EachUnit(shared.steps, call.num_sending, DeviceStepKind::kPut,
           [&](const DeviceStep& step, uint64_t i) {
             UnitLines(call, call.self, step.to + i)
                 .Store(LoadLocal(call.input + step.from + i, step.bytes - i),
                        FlagOf(call));
             return true;
           });
}

__device__ uint64_t ReleasedBy(const DeviceCall& call, int member) {
  const uint64_t word = AcquireWord(&call.members[member].flagged->released);
  const uint64_t tag = call.epoch << kHashBits;
  return (word & ~kHashMask) == tag ? word & kHashMask : 0;
}

// Until all peers have read `rounds` rounds. By a whole warp.
__device__ bool AwaitReleased(const DeviceCall& call, Shared& shared,
                              uint64_t rounds) {
  return AwaitMembers(call, &shared.gave_up, [&](int member) {
    return ReleasedBy(call, member) >= rounds ? Look::kThere : Look::kNotYet;
  });
}

// Notes what all peers have read, for later calls. By a whole warp.
__device__ void NoteReleased(const DeviceCall& call) {
  uint64_t least = ~uint64_t{0};
  for (int member = LaneInWarp(); member < call.num_members; member += 32)
    if (member != call.self) least = min(least, ReleasedBy(call, member));
  for (int distance = 16; distance > 0; distance /= 2)
    least = min(least, __shfl_xor_sync(0xffffffff, least, distance));
  if (LaneInWarp() == 0 && least > call.scratch->flagged_released)
    call.scratch->flagged_released = least;
}

// Until all members that this one receives from are in the same call. By a
// whole warp.
__device__ bool AwaitCalls(const DeviceCall& call, Shared& shared) {
  const DeviceStep* receiving = shared.steps + call.num_sending;
  uint64_t sources = 0;
  static_assert(kMaxMembers <= 64);
  for (uint32_t at = 0; at < call.num_receiving; ++at)
    for (int member = receiving[at].first; member < receiving[at].last;
         ++member)
      sources |= uint64_t{1} << member;
  const uint64_t expected = ExpectedCall(call);
  return AwaitMembers(call, &shared.gave_up, [&](int member) {
    if ((sources >> member & 1) == 0) return Look::kThere;
    const uint64_t word =
        LoadWord(&call.members[member].flagged->calls[SlotOf(call)]);
    if (word == expected) return Look::kThere;
    if ((word & ~kHashMask) != (expected & ~kHashMask)) return Look::kNotYet;
    Report(call.status, DeviceFault::kMismatch, member);
    return Look::kFault;
  });
}

__global__ void __launch_bounds__(kThreads + 32, 1)
    Exchange(const __grid_constant__ DeviceCall call) {
  __shared__ Shared shared;
  const KernelProgress progress(call);
  FlaggedControl& mine = *call.members[call.self].flagged;
  if (threadIdx.x == 0) {
    shared.gave_up = 0;
    shared.released = call.scratch->flagged_released;
  }
  // Both lists lie one behind the other.
  const auto* from = reinterpret_cast<const uint64_t*>(call.sending);
  auto* to = reinterpret_cast<uint64_t*>(shared.steps);
  const uint32_t words = (call.num_sending + call.num_receiving) *
                         (sizeof(DeviceStep) / sizeof(uint64_t));
  for (uint32_t i = threadIdx.x; i < words; i += blockDim.x) to[i] = from[i];
  __syncthreads();

  const bool data = threadIdx.x < kThreads;
  bool done = true;
  if (shared.released + kFlaggedSlots <= call.base_round) {
    if (!data)
      done = AwaitReleased(call, shared, call.base_round + 1 - kFlaggedSlots);
    done = !__syncthreads_or(!done);
  }
  // Not before: a peer may have yet to see what this word said before.
  if (done && threadIdx.x == 0 && blockIdx.x == 0)
    StoreWord(&mine.calls[SlotOf(call)], ExpectedCall(call));
  if (done && data) {
    Put(call, shared);
    done = Receive(call, shared);
  } else if (done && blockIdx.x == 0) {
    NoteReleased(call);
    done = AwaitCalls(call, shared);
  }
  if (__syncthreads_or(!done)) {
    if (threadIdx.x == 0) Stop(call.status);
    return;
  }
  // All that was read is in registers or farther, and nothing overtakes that.
  if (threadIdx.x == 0 && progress.Finish())
    StoreWord(&mine.released, call.epoch << kHashBits | (call.base_round + 1));
}

__global__ void Wipe(const __grid_constant__ DeviceCall call) {
  __shared__ Shared shared;
  if (threadIdx.x == 0) shared.gave_up = 0;
  __syncthreads();
  bool done = true;
  if (threadIdx.x < 32) done = AwaitReleased(call, shared, call.base_round);
  if (__syncthreads_or(!done)) {
    if (threadIdx.x == 0) Stop(call.status);
    return;
  }
  FlaggedControl& mine = *call.members[call.self].flagged;
  for (auto& slot : mine.lines)
    for (uint64_t i = threadIdx.x * 16; i < sizeof(slot); i += blockDim.x * 16)
      StoreVolatile(slot + i, make_uint4(0, 0, 0, 0));
  FenceSystem();
  __syncthreads();
  if (threadIdx.x == 0)
    StoreWord(&mine.released, call.epoch << kHashBits | (call.base_round + 1));
  // What a peer has yet to wipe may carry the flags that come next.
  if (threadIdx.x < 32) done = AwaitReleased(call, shared, call.base_round + 1);
  if (__syncthreads_or(!done) && threadIdx.x == 0) Stop(call.status);
}

}  // namespace

bool FitsFlagged(const Program& program) {
  const auto to_slot = [](const DeviceStep& step) {
    return step.kind == DeviceStepKind::kReduceToSlot ||
           step.kind == DeviceStepKind::kReduceToBoth;
  };
  return program.rounds == 1 &&
         program.sending.size() + program.receiving.size() <= kMaxSteps &&
         std::ranges::none_of(program.receiving, to_slot);
}

uint32_t FlaggedBlocks(const Program& program) {
  uint64_t put = 0, get = 0;
  for (const DeviceStep& step : program.sending) put += Units(step.bytes);
  for (const DeviceStep& step : program.receiving) get += Units(step.bytes);
  const uint64_t units = std::max(put, get);
  return static_cast<uint32_t>(std::clamp<uint64_t>(
      (units + kThreads - 1) / kThreads, 1, kMaxBlocksUsed));
}

cudaError_t LaunchFlagged(const DeviceCall& call, uint32_t blocks,
                          cudaStream_t stream) {
  Exchange<<<blocks, kThreads + 32, 0, stream>>>(call);
  return cudaGetLastError();
}

cudaError_t LaunchWipe(const DeviceCall& call, cudaStream_t stream) {
  Wipe<<<1, kThreads, 0, stream>>>(call);
  return cudaGetLastError();
}

cudaError_t PreloadFlagged() {
  cudaFuncAttributes attributes;
  const cudaError_t error = cudaFuncGetAttributes(&attributes, Exchange);
  return error != cudaSuccess ? error
                              : cudaFuncGetAttributes(&attributes, Wipe);
}

}  // namespace jax_cxl::cuda
