#include <algorithm>

#include "cc/engine/cuda/counted.cuh"
#include "cc/engine/cuda/flagged/flagged_call.cuh"
#include "cc/engine/cuda/slot_call.cuh"
#include "cc/engine/cuda/transfers/transfers.h"

namespace jax_cxl::cuda {
namespace {

// The transfers travel with the launch. Few of them cost less.
template <size_t most>
struct Transfers {
  DeviceTransfer transfers[most];
};
static_assert(sizeof(Transfers<kMostTransfers>) + sizeof(Shape) <= 4096);

__device__ void RunShort(const DeviceTransfer& given, DeviceCall* call) {
  __shared__ flagged::Shared shared;
  __shared__ FlaggedControl* rings[2];
  if (threadIdx.x < 2)
    rings[threadIdx.x] = given.call.members[threadIdx.x].flagged;
  if (!TakePosition(given.call, /*flagged=*/true, call)) return;
  const bool source = call->self == 0;
  if (threadIdx.x == 0) {
    call->num_sending = source ? 1 : 0;
    call->num_receiving = source ? 0 : 1;
  }
  __syncthreads();
  const flagged::ShortStep step = {
      .kind = static_cast<uint16_t>(source ? DeviceStepKind::kPut
                                           : DeviceStepKind::kGet),
      .first = 0,
      .last = 1,
      .from = 0,
      .input_from = 0,
      .to = 0,
      .bytes = given.flagged_bytes};
  flagged::RunCounted({*call, rings, &step, &step}, shared, call);
}

// Block (x, y) is block x of transfer y.
template <size_t most>
__global__ void __launch_bounds__(kMaxThreads + kControlWarps * 32, 1)
    Transfer(const __grid_constant__ Transfers<most> given,
             const __grid_constant__ Shape shape) {
  __shared__ DeviceCall call;
  const DeviceTransfer& transfer = given.transfers[most == 1 ? 0 : blockIdx.y];
  if (transfer.flagged_bytes > 0) return RunShort(transfer, &call);
  __shared__ BlockState state;
  state.Reset();
  if (!TakePosition(transfer.call, /*flagged=*/false, &call)) return;
  RunCounted<CallKind::kTransfer>(call, shape, state);
}

template <size_t most>
cudaError_t LaunchMost(std::span<const DeviceTransfer> transfers,
                       const Shape& shape, cudaStream_t stream) {
  Transfers<most> given;
  std::ranges::copy(transfers, given.transfers);
  const dim3 blocks(shape.blocks, static_cast<uint32_t>(transfers.size()));
  Transfer<most><<<blocks, ThreadsOf(shape), 0, stream>>>(given, shape);
  return cudaGetLastError();
}

}  // namespace

cudaError_t LaunchTransfers(std::span<const DeviceTransfer> transfers,
                            const Shape& shape, cudaStream_t stream) {
  if (ThreadsOf(shape) < flagged::kThreads + 32)
    return cudaErrorInvalidConfiguration;
  return transfers.size() == 1
             ? LaunchMost<1>(transfers, shape, stream)
             : LaunchMost<kMostTransfers>(transfers, shape, stream);
}

cudaError_t PreloadTransfers() {
  cudaFuncAttributes attributes;
  const cudaError_t error = cudaFuncGetAttributes(&attributes, Transfer<1>);
  if (error != cudaSuccess) return error;
  return cudaFuncGetAttributes(&attributes, Transfer<kMostTransfers>);
}

}  // namespace jax_cxl::cuda
