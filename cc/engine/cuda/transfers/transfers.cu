#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "cc/engine/cuda/counted.cuh"
#include "cc/engine/cuda/executor.h"
#include "cc/engine/cuda/flagged/flagged_call.cuh"
#include "cc/engine/cuda/slot_call.cuh"
#include "cc/engine/cuda/transfers/transfers.h"

namespace jax_cxl::cuda {
namespace {

// The transfers of a launch, which are an argument of the kernel. `most` is the
// length of the list. The kernel is compiled for several lengths, because a
// launch with a short list costs less.
template <size_t most>
struct Transfers {
  DeviceTransfer transfers[most];
};
static_assert(sizeof(Transfers<kMostTransfers>) + sizeof(Shape) <= 4096);
constexpr size_t kFew = 4;

__device__ void RunShort(const DeviceTransfer& given, DeviceCall* call) {
  __shared__ flagged::Shared shared;
  __shared__ FlaggedControl* rings[2];
  // A warp other than warp 0 loads these addresses, because warp 0 loads the
  // position of the call (TakePosition). If warp 0 loaded the addresses too, it
  // would have to wait for both loads.
  const uint32_t member = threadIdx.x - (flagged::kBlockThreads - 32);
  if (member < 2) rings[member] = given.call.members[member].flagged;
  const bool source = given.call.self == 0;
  const flagged::ShortStep step = {
      .kind = static_cast<uint16_t>(source ? DeviceStepKind::kPut
                                           : DeviceStepKind::kGet),
      .first = 0,
      .last = 1,
      .from = 0,
      .input_from = 0,
      .to = 0,
      .bytes = given.bytes};
  const flagged::Task task = {.call = *call,
                              .rings = rings,
                              .sending = &step,
                              .num_sending = source ? 1u : 0u,
                              .receiving = &step,
                              .num_receiving = source ? 0u : 1u,
                              .sources = source ? 0u : 1u};
  flagged::Begin(given.call, shared);
  flagged::Puts puts(given.call.input, task.sending, task.num_sending);
  if (!TakePosition(given.call, /*flagged=*/true, call)) return;
  flagged::RunCounted(task, shared, call, puts);
}

// Threads take turns with vectors, or with bytes if an address or the end is
// not that of a vector.
__device__ void Copy(std::byte* to, const std::byte* from, uint32_t bytes) {
  const uint32_t first = blockIdx.x * blockDim.x + threadIdx.x;
  const uint32_t threads = gridDim.x * blockDim.x;
  const bool whole =
      (reinterpret_cast<uintptr_t>(to) | reinterpret_cast<uintptr_t>(from)) %
          sizeof(uint4) ==
      0;
  const uint32_t vectors = whole ? bytes / sizeof(uint4) : 0;
  for (uint32_t i = first; i < vectors; i += threads)
    reinterpret_cast<uint4*>(to)[i] = reinterpret_cast<const uint4*>(from)[i];
  for (uint32_t i = vectors * sizeof(uint4) + first; i < bytes; i += threads)
    to[i] = from[i];
}

// Block (x, y) of the kernel is block x of transfer y.
template <size_t most>
__global__ void __launch_bounds__(kMaxThreads + kControlWarps * 32, 1)
    Transfer(const __grid_constant__ Transfers<most> given,
             const __grid_constant__ Shape shape) {
  __shared__ DeviceCall call;
  const DeviceTransfer& transfer = given.transfers[most == 1 ? 0 : blockIdx.y];
  if (transfer.way == Way::kCopy)
    return Copy(transfer.call.output, transfer.call.input, transfer.bytes);
  if (transfer.way == Way::kFlagged) return RunShort(transfer, &call);
  __shared__ BlockState state;
  state.Reset(transfer.call.scratch->released[blockIdx.x]);
  if (!TakePosition(transfer.call, /*flagged=*/false, &call)) return;
  Run<CallKind::kTransfer, /*counted=*/true>(call, shape, {}, state);
}

// Returns the number of blocks of each transfer. If no transfer goes through
// slots, returns only the number that the longest of them needs, because a
// kernel with fewer blocks ends sooner.
uint32_t BlocksFor(std::span<const DeviceTransfer> transfers,
                   const Shape& shape) {
  uint64_t most_bytes = 0;
  for (const DeviceTransfer& transfer : transfers) {
    if (transfer.way == Way::kSlots) return shape.blocks;
    most_bytes = std::max<uint64_t>(most_bytes, transfer.bytes);
  }
  return std::min(shape.blocks,
                  flagged::BlocksFor(flagged::NumUnits(most_bytes)));
}

template <size_t most>
cudaError_t LaunchMost(std::span<const DeviceTransfer> transfers,
                       const Shape& shape, cudaStream_t stream) {
  Transfers<most> given;
  std::ranges::copy(transfers, given.transfers);
  const dim3 blocks(BlocksFor(transfers, shape),
                    static_cast<uint32_t>(transfers.size()));
  Transfer<most><<<blocks, ThreadsOf(shape), 0, stream>>>(given, shape);
  return cudaGetLastError();
}

}  // namespace

DeviceTransfer MakeCopy(void* to, const void* from, uint32_t bytes) {
  DeviceTransfer transfer{.way = Way::kCopy, .bytes = bytes};
  transfer.call.input = static_cast<const std::byte*>(from);
  transfer.call.output = static_cast<std::byte*>(to);
  return transfer;
}

cudaError_t LaunchTransfers(std::span<const DeviceTransfer> transfers,
                            const Shape& shape, cudaStream_t stream) {
  if (ThreadsOf(shape) < flagged::kBlockThreads)
    return cudaErrorInvalidConfiguration;
  if (transfers.size() == 1) return LaunchMost<1>(transfers, shape, stream);
  return transfers.size() <= kFew
             ? LaunchMost<kFew>(transfers, shape, stream)
             : LaunchMost<kMostTransfers>(transfers, shape, stream);
}

cudaError_t PreloadTransfers() {
  return LoadKernels(Transfer<1>, Transfer<kFew>, Transfer<kMostTransfers>);
}

}  // namespace jax_cxl::cuda
