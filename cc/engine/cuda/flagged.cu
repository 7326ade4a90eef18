#include <algorithm>
#include <cstring>
#include <type_traits>

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

// Steps of both lanes.
constexpr uint32_t kMaxSteps = 2 * kMaxMembers + 8;

// A step of a short message, whose offsets are small. The fields are those of
// DeviceStep.
struct ShortStep {
  uint16_t kind;
  uint8_t first, last;
  uint32_t from, input_from, to, bytes;

  __device__ bool Is(DeviceStepKind other) const {
    return kind == static_cast<uint16_t>(other);
  }
};
static_assert(kMaxMembers <= 255);

// What a call works with. It travels with the launch: in the device's memory
// each list would cost a load, behind which that of the data would wait.
template <uint32_t kMembers, uint32_t kSteps>
struct Lists {
  FlaggedControl* rings[kMembers];
  ShortStep steps[kSteps];  // those that send, then those that receive
};
using FewLists = Lists<8, 24>;
using AllLists = Lists<kMaxMembers, kMaxSteps>;
// More would need a driver of CUDA 12.1.
static_assert(sizeof(DeviceCall) + sizeof(AllLists) <= 4096);

// Lists of any length.
struct Task {
  const DeviceCall& call;
  FlaggedControl* const* rings;
  const ShortStep* sending;
  const ShortStep* receiving;
};

__host__ __device__ constexpr uint64_t NumUnits(uint64_t bytes) {
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
  __device__ UnitLines(const Task& task, int member, uint64_t at) {
    const uint64_t unit = at / kUnitBytes;
    low = task.rings[member]->lines[SlotOf(task.call)] +
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

  Arriving() = default;
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

// This thread's part of all units of the steps of one kind, which the threads
// of all blocks share evenly.
class Units {
 public:
  __device__ Units(const ShortStep* steps, uint32_t num_steps,
                   DeviceStepKind kind)
      : steps_(steps), num_steps_(num_steps), kind_(kind) {
    Find();
  }

  // Whether there is one left.
  __device__ bool has() const { return at_ < num_steps_; }
  // Which it is: a step, and a byte of it.
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
  uint32_t first_ = 0;  // unit of step `at_`
};

__device__ bool Get(const Task& task, Shared& shared, const Units& units) {
  const DeviceCall& call = task.call;
  const ShortStep& step = units.step();
  const UnitLines lines(task, step.first, step.from + units.i());
  Wait wait(call, shared);
  for (;;) {
    const Arriving arriving(lines);
    if (arriving.Has(FlagOf(call))) {
      StoreLocal(call.output + step.to + units.i(), arriving.Data(),
                 units.left());
      return true;
    }
    if (!wait.GoOn(step.first)) return false;
  }
}

// Sources whose units are under way at once.
constexpr int kSources = 4;

// A unit each of some sources, and the fold of those before them.
struct Operands {
  uint4 values[kSources];
  int count;
  uint4 fold[4];  // an ElementFold
};

// Folds the operands in and returns the result so far. Out of line, as there is
// one for each type, and small: a function that needs many registers saves
// those of its caller in memory, for all threads at once.
template <typename Type>
__device__ __noinline__ uint4 FoldInAs(ReduceOp op, Operands& operands,
                                       bool first) {
  using Fold = ElementFold<Type>;
  static_assert(sizeof(Fold) <= sizeof(operands.fold));
  static_assert(std::is_trivially_copyable_v<Fold>);
  Fold fold;
  if (first)
    fold.Begin(operands.values[0]);
  else
    std::memcpy(&fold, operands.fold, sizeof(fold));
#pragma unroll 1
  for (int k = first ? 1 : 0; k < operands.count; ++k)
    fold.Add(op, operands.values[k]);
  std::memcpy(operands.fold, &fold, sizeof(fold));
  return fold.Result();
}

__device__ uint4 FoldIn(const DeviceCall& call, Operands& operands,
                        bool first) {
  return WithElementType(call.dtype, [&]<typename Type>() {
    return FoldInAs<Type>(call.reduce_op, operands, first);
  });
}

// Fills `operands` with what members [first, first + operands.count) have for
// unit `i` of the step.
__device__ __forceinline__ bool Fetch(const Task& task, Wait& wait,
                                      const Units& units, int first,
                                      Operands& operands) {
  const DeviceCall& call = task.call;
  const ShortStep& step = units.step();
  const uint32_t flag = FlagOf(call);
  uint32_t missing = (1u << operands.count) - 1;  // a bit a source
  const int own = call.self - first;
  if (own >= 0 && own < operands.count) {
    operands.values[own] =
        LoadLocal(call.input + step.input_from + units.i(), units.left());
    missing &= ~(1u << own);
  }
  while (missing != 0) {
    // All loads before the first look at what they brought.
    Arriving arriving[kSources];
#pragma unroll
    for (int k = 0; k < kSources; ++k) {
      if ((missing >> k & 1) != 0)
        arriving[k] =
            Arriving(UnitLines(task, first + k, step.from + units.i()));
    }
#pragma unroll
    for (int k = 0; k < kSources; ++k) {
      if ((missing >> k & 1) == 0 || !arriving[k].Has(flag)) continue;
      operands.values[k] = arriving[k].Data();
      missing &= ~(1u << k);
    }
    if (missing != 0 && !wait.GoOn(first + __ffs(missing) - 1)) return false;
  }
  return true;
}

__device__ bool Reduce(const Task& task, Shared& shared, const Units& units) {
  const DeviceCall& call = task.call;
  const ShortStep& step = units.step();
  Wait wait(call, shared);
  Operands operands;
  uint4 result = {};
  for (int first = step.first; first < step.last; first += kSources) {
    operands.count = min(step.last - first, kSources);
    if (!Fetch(task, wait, units, first, operands)) return false;
    result = FoldIn(call, operands, first == step.first);
    // A single source is copied, NaNs and all.
    if (step.last - step.first == 1) result = operands.values[0];
  }
  StoreLocal(call.output + step.to + units.i(), result, units.left());
  return true;
}

// What all data threads do, behind the puts.
__device__ bool Receive(const Task& task, Shared& shared) {
  const DeviceCall& call = task.call;
  const auto sending = [&](DeviceStepKind kind) {
    return Units(task.sending, call.num_sending, kind);
  };
  const auto receiving = [&](DeviceStepKind kind) {
    return Units(task.receiving, call.num_receiving, kind);
  };
  for (Units u = sending(DeviceStepKind::kCopy); u.has(); u.Next())
    StoreLocal(call.output + u.step().to + u.i(),
               LoadLocal(call.input + u.step().from + u.i(), u.left()),
               u.left());
  for (Units u = sending(DeviceStepKind::kZero); u.has(); u.Next())
    StoreLocal(call.output + u.step().to + u.i(), make_uint4(0, 0, 0, 0),
               u.left());
  for (Units u = receiving(DeviceStepKind::kGet); u.has(); u.Next())
    if (!Get(task, shared, u)) return false;
  for (Units u = receiving(DeviceStepKind::kReduce); u.has(); u.Next())
    if (!Reduce(task, shared, u)) return false;
  return true;
}

// This thread's part of the puts. The first load is under way before it is
// known whether the slot is free.
class Puts {
 public:
  __device__ explicit Puts(const Task& task)
      : task_(task),
        units_(task.sending, task.call.num_sending, DeviceStepKind::kPut) {
    if (units_.has()) Load();
  }

  __device__ void Run() {
    while (units_.has()) {
      UnitLines(task_, task_.call.self, units_.step().to + units_.i())
          .Store(data_, FlagOf(task_.call));
      units_.Next();
      if (units_.has()) Load();
    }
  }

 private:
  __device__ void Load() {
    data_ = LoadLocal(task_.call.input + units_.step().from + units_.i(),
                      units_.left());
  }

  const Task& task_;
  Units units_;
  uint4 data_ = {};
};

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
__device__ bool AwaitCalls(const Task& task, Shared& shared) {
  const DeviceCall& call = task.call;
  uint64_t sources = 0;
  static_assert(kMaxMembers <= 64);
  for (uint32_t at = 0; at < call.num_receiving; ++at)
    for (int member = task.receiving[at].first;
         member < task.receiving[at].last; ++member)
      sources |= uint64_t{1} << member;
  const uint64_t expected = ExpectedCall(call);
  return AwaitMembers(call, &shared.gave_up, [&](int member) {
    if ((sources >> member & 1) == 0) return Look::kThere;
    const uint64_t word = LoadWord(&task.rings[member]->calls[SlotOf(call)]);
    if (word == expected) return Look::kThere;
    if ((word & ~kHashMask) != (expected & ~kHashMask)) return Look::kNotYet;
    Report(call.status, DeviceFault::kMismatch, member);
    return Look::kFault;
  });
}

template <typename AnyLists>
__global__ void __launch_bounds__(kThreads + 32, 1)
    Exchange(const __grid_constant__ DeviceCall call,
             const __grid_constant__ AnyLists lists) {
  __shared__ Shared shared;
  const KernelProgress progress(call);
  const Task task{call, lists.rings, lists.steps,
                  lists.steps + call.num_sending};
  FlaggedControl& mine = *task.rings[call.self];
  if (threadIdx.x == 0) {
    shared.gave_up = 0;
    shared.released = call.scratch->flagged_released;
  }
  const bool data = threadIdx.x < kThreads;
  Puts puts(task);
  __syncthreads();

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
    puts.Run();
    done = Receive(task, shared);
  } else if (done && blockIdx.x == 0) {
    NoteReleased(call);
    done = AwaitCalls(task, shared);
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

template <typename AnyLists>
AnyLists ListsOf(const DeviceCall& call, const FlaggedProgram& program) {
  AnyLists lists = {};
  for (int member = 0; member < call.num_members; ++member)
    lists.rings[member] = program.members[member].flagged;
  const auto in_short = [](const DeviceStep& step) {
    return ShortStep{static_cast<uint16_t>(step.kind),
                     static_cast<uint8_t>(step.first),
                     static_cast<uint8_t>(step.last),
                     static_cast<uint32_t>(step.from),
                     static_cast<uint32_t>(step.input_from),
                     static_cast<uint32_t>(step.to),
                     static_cast<uint32_t>(step.bytes)};
  };
  ShortStep* to = lists.steps;
  to = std::transform(program.sending, program.sending + call.num_sending, to,
                      in_short);
  std::transform(program.receiving, program.receiving + call.num_receiving, to,
                 in_short);
  return lists;
}

template <typename AnyLists>
void LaunchWith(const DeviceCall& call, const FlaggedProgram& program,
                cudaStream_t stream) {
  Exchange<<<program.blocks, kThreads + 32, 0, stream>>>(
      call, ListsOf<AnyLists>(call, program));
}

template <typename AnyLists>
constexpr bool Fit(const DeviceCall& call) {
  return static_cast<size_t>(call.num_members) <=
             std::extent_v<decltype(AnyLists::rings)> &&
         call.num_sending + call.num_receiving <=
             std::extent_v<decltype(AnyLists::steps)>;
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
  for (const DeviceStep& step : program.sending) put += NumUnits(step.bytes);
  for (const DeviceStep& step : program.receiving) get += NumUnits(step.bytes);
  const uint64_t units = std::max(put, get);
  return static_cast<uint32_t>(std::clamp<uint64_t>(
      (units + kThreads - 1) / kThreads, 1, kMaxBlocksUsed));
}

cudaError_t LaunchFlagged(const DeviceCall& call, const FlaggedProgram& program,
                          cudaStream_t stream) {
  if (Fit<FewLists>(call))
    LaunchWith<FewLists>(call, program, stream);
  else
    LaunchWith<AllLists>(call, program, stream);
  return cudaGetLastError();
}

cudaError_t LaunchWipe(const DeviceCall& call, cudaStream_t stream) {
  Wipe<<<1, kThreads, 0, stream>>>(call);
  return cudaGetLastError();
}

cudaError_t PreloadFlagged() {
  cudaFuncAttributes attributes;
  if (cudaError_t error =
          cudaFuncGetAttributes(&attributes, Exchange<FewLists>);
      error != cudaSuccess)
    return error;
  if (cudaError_t error =
          cudaFuncGetAttributes(&attributes, Exchange<AllLists>);
      error != cudaSuccess)
    return error;
  return cudaFuncGetAttributes(&attributes, Wipe);
}

}  // namespace jax_cxl::cuda
