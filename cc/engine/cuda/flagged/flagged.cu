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
AnyLists ListsOf(const DeviceCall& call, const GpuPlan& gpu_plan,
                 const MemberView* members) {
  AnyLists lists = {};
  for (int member = 0; member < call.num_members; ++member)
    lists.rings[member] = members[member].flagged;
  lists.sources = SourcesOf(gpu_plan);
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
  to = std::ranges::transform(gpu_plan.sending, to, in_short).out;
  std::ranges::transform(gpu_plan.receiving, to, in_short);
  return lists;
}

// Returns how many thread blocks to launch: enough that each thread has little
// to do.
uint32_t BlocksOf(const GpuPlan& gpu_plan) {
  uint64_t put = 0, get = 0;
  for (const DeviceStep& step : gpu_plan.sending) put += NumUnits(step.bytes);
  for (const DeviceStep& step : gpu_plan.receiving) get += NumUnits(step.bytes);
  return BlocksFor(std::max(put, get));
}

template <typename AnyLists>
void LaunchWith(const DeviceCall& call, const GpuPlan& gpu_plan,
                const MemberView* members, cudaStream_t stream) {
  const AnyLists lists = ListsOf<AnyLists>(call, gpu_plan, members);
  const auto run = call.journal == nullptr ? RunFlagged<AnyLists>
                                           : RunCountedFlagged<AnyLists>;
  run<<<BlocksOf(gpu_plan), kBlockThreads, 0, stream>>>(call, lists);
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

cudaError_t LaunchFlagged(const DeviceCall& call, const GpuPlan& gpu_plan,
                          const MemberView* members, cudaStream_t stream) {
  using namespace flagged;
  if (Fit<FewLists>(call))
    LaunchWith<FewLists>(call, gpu_plan, members, stream);
  else
    LaunchWith<AllLists>(call, gpu_plan, members, stream);
  return cudaGetLastError();
}

cudaError_t PreloadFlagged() {
  using namespace flagged;
  return LoadKernels(RunFlagged<FewLists>, RunCountedFlagged<FewLists>,
                     RunFlagged<AllLists>, RunCountedFlagged<AllLists>);
}

}  // namespace jax_cxl::cuda
