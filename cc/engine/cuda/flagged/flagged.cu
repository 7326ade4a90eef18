#include <algorithm>

#include "cc/engine/cuda/block.cuh"
#include "cc/engine/cuda/counted.cuh"
#include "cc/engine/cuda/device_memory.cuh"
#include "cc/engine/cuda/executor.h"
#include "cc/engine/cuda/flagged/flagged.h"
#include "cc/engine/cuda/flagged/flagged_call.cuh"
#include "cc/engine/cuda/flagged/flagged_units.cuh"
#include "cc/engine/cuda/progress.cuh"

// The kernels for short messages, and their launch.
namespace jax_cxl::cuda {
namespace flagged {
namespace {

// Returns the task of a call. `call` may still be empty, if TakePosition copies
// `given` to it later. So the numbers of steps come from `given`.
template <typename AnyLists>
__device__ Task TaskOf(const DeviceCall& given, const DeviceCall& call,
                       const AnyLists& lists) {
  return {call,
          lists.rings,
          lists.steps,
          given.num_sending,
          lists.steps + given.num_sending,
          given.num_receiving,
          lists.sources};
}

template <typename AnyLists>
__global__ void __launch_bounds__(kBlockThreads, 1)
    RunFlagged(const __grid_constant__ DeviceCall call,
               const __grid_constant__ AnyLists lists) {
  __shared__ Shared shared;
  const KernelProgress progress(call);
  const Task task = TaskOf(call, call, lists);
  FlaggedControl& mine = *task.rings[call.self];
  // If the host knows that the slot is free, nothing is loaded before the puts.
  const bool free = SlotIsFree(call, call.flagged_released);
  Begin(call, shared, free);
  Puts puts(call.input, task.sending, task.num_sending);
  if (free) Put(task, mine, puts);
  __syncthreads();
  if (!Run</*counted=*/false>(task, mine, shared, puts, free, /*done=*/true)) {
    if (threadIdx.x == 0) Stop(call.status);
    return;
  }
  // By now, all threads have loaded the data of the peers. The following store
  // cannot overtake these loads, so peers that see it may overwrite the slot.
  if (threadIdx.x == 0 && progress.Finish()) {
    NoteRound(task, shared);
    StoreReleased(call, mine);
  }
}

// Does what RunFlagged does, for calls that are numbered on the device
// (LaunchCounted in executor.h).
template <typename AnyLists>
__global__ void __launch_bounds__(kBlockThreads, 1)
    RunCountedFlagged(const __grid_constant__ DeviceCall given,
                      const __grid_constant__ AnyLists lists) {
  __shared__ Shared shared;
  __shared__ DeviceCall call;
  const Task task = TaskOf(given, call, lists);
  Begin(given, shared);
  Puts puts(given.input, task.sending, task.num_sending);
  if (!TakePosition(given, /*flagged=*/true, &call)) return;
  RunCounted(task, shared, &call, puts);
}

template <typename AnyLists>
AnyLists ListsOf(const DeviceCall& call, const FlaggedPlan& gpu_plan) {
  AnyLists lists = {};
  for (int member = 0; member < call.num_members; ++member)
    lists.rings[member] = gpu_plan.members[member].flagged;
  lists.sources = gpu_plan.sources;
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
    RunFlagged<<<gpu_plan.blocks, kBlockThreads, 0, stream>>>(call, lists);
  else
    RunCountedFlagged<<<gpu_plan.blocks, kBlockThreads, 0, stream>>>(call,
                                                                     lists);
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
  return flagged::BlocksFor(std::max(put, get));
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
  using namespace flagged;
  return LoadKernels(RunFlagged<FewLists>, RunCountedFlagged<FewLists>,
                     RunFlagged<AllLists>, RunCountedFlagged<AllLists>);
}

}  // namespace jax_cxl::cuda
