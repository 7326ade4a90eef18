#include <algorithm>
#include <type_traits>

#include "cc/engine/cuda/block.cuh"
#include "cc/engine/cuda/counted.cuh"
#include "cc/engine/cuda/device_memory.cuh"
#include "cc/engine/cuda/flagged/flagged.h"
#include "cc/engine/cuda/flagged/flagged_peers.cuh"
#include "cc/engine/cuda/flagged/flagged_reduce.cuh"
#include "cc/engine/cuda/flagged/flagged_units.cuh"
#include "cc/engine/cuda/progress.cuh"

// The kernels for short messages, and their launch. Besides the warps that move
// data, one warp watches the peers' words.
namespace jax_cxl::cuda {
namespace flagged {
namespace {

constexpr uint32_t kMaxBlocksUsed = 32;

__device__ bool Get(const Task& task, Shared& shared, const Units& units) {
  const DeviceCall& call = task.call;
  const ShortStep& step = units.step();
  const UnitVectors vectors(task, step.first, step.from + units.i());
  Wait wait(call, shared);
  for (;;) {
    const Arriving arriving(vectors);
    if (arriving.Has(FlagOf(call))) {
      StoreLocal(call.output + step.to + units.i(), arriving.Data(),
                 units.left());
      return true;
    }
    if (!wait.GoOn(step.first)) return false;
  }
}

// The work of all data threads after the puts.
__device__ bool Receive(const Task& task, Shared& shared) {
  const DeviceCall& call = task.call;
  const auto sending = [&](DeviceStepKind kind) {
    return Units(task.sending, call.num_sending, kind);
  };
  const auto receiving = [&](DeviceStepKind kind) {
    return Units(task.receiving, call.num_receiving, kind);
  };
  for (Units u = sending(DeviceStepKind::kCopy); u.has(); u.Next()) {
    const std::byte* from = call.input + u.step().from + u.i();
    std::byte* to = call.output + u.step().to + u.i();
    if (from != to) StoreLocal(to, LoadLocal(from, u.left()), u.left());
  }
  for (Units u = sending(DeviceStepKind::kZero); u.has(); u.Next())
    StoreLocal(call.output + u.step().to + u.i(), make_uint4(0, 0, 0, 0),
               u.left());
  for (Units u = receiving(DeviceStepKind::kGet); u.has(); u.Next())
    if (!Get(task, shared, u)) return false;
  for (Units u = receiving(DeviceStepKind::kReduce); u.has(); u.Next())
    if (!Reduce(task, shared, u)) return false;
  return true;
}

// This thread's part of the puts. It starts the first load before it knows that
// the slot is free.
class Puts {
 public:
  __device__ explicit Puts(const Task& task)
      : task_(task),
        units_(task.sending, task.call.num_sending, DeviceStepKind::kPut) {
    if (units_.has()) Load();
  }

  __device__ void Run() {
    while (units_.has()) {
      UnitVectors(task_, task_.call.self, units_.step().to + units_.i())
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

__device__ void Begin(const DeviceCall& call, Shared& shared) {
  if (threadIdx.x != 0) return;
  shared.gave_up = 0;
  shared.released = call.scratch->flagged_released;
}

// Executes the call, once all threads of the block know `shared`. `done` is
// false if an earlier step of the block has failed. Returns false if the call
// cannot complete.
template <bool counted>
__device__ bool Run(const Task& task, FlaggedControl& mine, Shared& shared,
                    Puts& puts, bool done) {
  const DeviceCall& call = task.call;
  const bool data = threadIdx.x < kThreads;
  if (done && shared.released + kFlaggedSlots <= call.base_round) {
    if (!data)
      done = AwaitReleased(call, shared, call.base_round + 1 - kFlaggedSlots);
    done = !__syncthreads_or(!done);
  }
  // Only now: a peer may not have seen the old value of this word yet.
  if (done && threadIdx.x == 0 && blockIdx.x == 0)
    StoreWord(&mine.calls[SlotOf(call)], ExpectedCall(call));
  if (done && data) {
    puts.Run();
    done = Receive(task, shared);
  } else if (done && blockIdx.x == 0) {
    if constexpr (counted) WriteJournal(call);
    NoteReleased(call);
    done = AwaitCalls(task, shared);
  }
  return !__syncthreads_or(!done);
}

__device__ void StoreReleased(const DeviceCall& call, FlaggedControl& mine) {
  StoreWord(&mine.released, call.epoch << kValueBits | (call.base_round + 1));
}

template <typename AnyLists>
__global__ void __launch_bounds__(kThreads + 32, 1)
    RunFlagged(const __grid_constant__ DeviceCall call,
               const __grid_constant__ AnyLists lists) {
  __shared__ Shared shared;
  const KernelProgress progress(call);
  const Task task{call, lists.rings, lists.steps,
                  lists.steps + call.num_sending};
  FlaggedControl& mine = *task.rings[call.self];
  Begin(call, shared);
  Puts puts(task);
  __syncthreads();
  if (!Run</*counted=*/false>(task, mine, shared, puts, /*done=*/true)) {
    if (threadIdx.x == 0) Stop(call.status);
    return;
  }
  // All data are in registers or in memory by now, and no store overtakes that.
  if (threadIdx.x == 0 && progress.Finish()) StoreReleased(call, mine);
}

// In place of the round whose flag would be 0, all members clear their rings,
// as rings of hosts do (cc/comm/relay/flagged_rings.h). Called by all threads
// of a block.
__device__ bool BeginAnew(const Task& task, Shared& shared, DeviceCall* call) {
  FlaggedControl& mine = *task.rings[call->self];
  const uint64_t round = call->base_round;
  bool done = true;
  if (blockIdx.x == 0) {
    if (threadIdx.x < 32) done = AwaitReleased(*call, shared, round);
    if (__syncthreads_or(!done)) return false;
    auto* vectors = reinterpret_cast<uint4*>(mine.vectors);
    for (uint32_t i = threadIdx.x; i < sizeof(mine.vectors) / sizeof(uint4);
         i += blockDim.x)
      vectors[i] = make_uint4(0, 0, 0, 0);
    __syncthreads();
    if (threadIdx.x == 0) {
      FenceSystem();
      StoreWord(&mine.released, call->epoch << kValueBits | (round + 1));
    }
  } else if (threadIdx.x == 0) {
    // The other blocks store to the same ring.
    const volatile DeviceStatus* status = call->status;
    while (done && ReleasedBy(*call, call->self) < round + 1)
      done = status->abort == 0;
  }
  if (__syncthreads_or(!done)) return false;
  if (threadIdx.x < 32) done = AwaitReleased(*call, shared, round + 1);
  if (__syncthreads_or(!done)) return false;
  if (threadIdx.x == 0) {
    shared.released = round + 1;
    call->base_round = round + 1;
  }
  __syncthreads();
  return true;
}

// RunFlagged, for calls that count on the device (LaunchCounted in executor.h).
template <typename AnyLists>
__global__ void __launch_bounds__(kThreads + 32, 1)
    RunCountedFlagged(const __grid_constant__ DeviceCall given,
                      const __grid_constant__ AnyLists lists) {
  __shared__ Shared shared;
  __shared__ DeviceCall call;
  TakePosition(given, /*flagged=*/true, &call);
  const KernelProgress progress(call);
  const Task task{call, lists.rings, lists.steps,
                  lists.steps + call.num_sending};
  FlaggedControl& mine = *task.rings[call.self];
  Begin(call, shared);
  __syncthreads();
  const bool done =
      !BeginsAnew(call.base_round) || BeginAnew(task, shared, &call);
  Puts puts(task);
  if (!Run</*counted=*/true>(task, mine, shared, puts, done)) {
    if (threadIdx.x == 0) AwaitAbort(call.status);
    return;
  }
  if (threadIdx.x == 0 && progress.Finish()) {
    PassPosition(call, /*flagged=*/true);
    StoreReleased(call, mine);
  }
}

template <typename AnyLists>
AnyLists ListsOf(const DeviceCall& call, const FlaggedPlan& gpu_plan) {
  AnyLists lists = {};
  for (int member = 0; member < call.num_members; ++member)
    lists.rings[member] = gpu_plan.members[member].flagged;
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
  to = std::transform(gpu_plan.sending, gpu_plan.sending + call.num_sending, to,
                      in_short);
  std::transform(gpu_plan.receiving, gpu_plan.receiving + call.num_receiving,
                 to, in_short);
  return lists;
}

template <typename AnyLists>
void LaunchWith(const DeviceCall& call, const FlaggedPlan& gpu_plan,
                cudaStream_t stream) {
  const AnyLists lists = ListsOf<AnyLists>(call, gpu_plan);
  if (call.journal == nullptr)
    RunFlagged<<<gpu_plan.blocks, kThreads + 32, 0, stream>>>(call, lists);
  else
    RunCountedFlagged<<<gpu_plan.blocks, kThreads + 32, 0, stream>>>(call,
                                                                     lists);
}

template <typename AnyLists>
cudaError_t PreloadWith() {
  cudaFuncAttributes attributes;
  const cudaError_t error =
      cudaFuncGetAttributes(&attributes, RunFlagged<AnyLists>);
  if (error != cudaSuccess) return error;
  return cudaFuncGetAttributes(&attributes, RunCountedFlagged<AnyLists>);
}

template <typename AnyLists>
constexpr bool Fit(const DeviceCall& call) {
  return static_cast<size_t>(call.num_members) <=
             std::extent_v<decltype(AnyLists::rings)> &&
         call.num_sending + call.num_receiving <=
             std::extent_v<decltype(AnyLists::steps)>;
}

}  // namespace
}  // namespace flagged

uint32_t FlaggedBlocks(const GpuPlan& gpu_plan) {
  uint64_t put = 0, get = 0;
  for (const DeviceStep& step : gpu_plan.sending)
    put += flagged::NumUnits(step.bytes);
  for (const DeviceStep& step : gpu_plan.receiving)
    get += flagged::NumUnits(step.bytes);
  const uint64_t units = std::max(put, get);
  return static_cast<uint32_t>(
      std::clamp<uint64_t>((units + flagged::kThreads - 1) / flagged::kThreads,
                           1, flagged::kMaxBlocksUsed));
}

cudaError_t LaunchFlagged(const DeviceCall& call, const FlaggedPlan& gpu_plan,
                          cudaStream_t stream) {
  if (flagged::Fit<flagged::FewLists>(call))
    flagged::LaunchWith<flagged::FewLists>(call, gpu_plan, stream);
  else
    flagged::LaunchWith<flagged::AllLists>(call, gpu_plan, stream);
  return cudaGetLastError();
}

cudaError_t PreloadFlagged() {
  const cudaError_t error = flagged::PreloadWith<flagged::FewLists>();
  if (error != cudaSuccess) return error;
  return flagged::PreloadWith<flagged::AllLists>();
}

}  // namespace jax_cxl::cuda
