#include "cc/engine/cuda/block.cuh"
#include "cc/engine/cuda/counted.cuh"
#include "cc/engine/cuda/executor.h"
#include "cc/engine/cuda/slot_call.cuh"

namespace jax_cxl::cuda {
namespace {

template <CallKind kind>
__global__ void __launch_bounds__(kMaxThreads + kControlWarps * 32, 1)
    Execute(const __grid_constant__ DeviceCall call,
            const __grid_constant__ Shape shape,
            const __grid_constant__ DeviceRows rows) {
  __shared__ BlockState state;
  state.Reset(call.scratch->released[blockIdx.x]);
  Run<kind, /*counted=*/false>(call, shape, rows, state);
}

__global__ void __launch_bounds__(kMaxThreads + kControlWarps * 32, 1)
    ExecuteCounted(const __grid_constant__ DeviceCall given,
                   const __grid_constant__ Shape shape) {
  __shared__ BlockState state;
  __shared__ DeviceCall call;
  state.Reset(given.scratch->released[blockIdx.x]);
  if (!TakePosition(given, /*flagged=*/false, &call)) return;
  Run<CallKind::kCollective, /*counted=*/true>(call, shape, {}, state);
}

__global__ void WaitForEnd(const __grid_constant__ DeviceCall call) {
  __shared__ BlockState state;
  state.Reset(/*known=*/0);
  __syncthreads();
  ControlWarp warp(call, state, kSending, 0);
  if (!warp.AwaitEnd() && threadIdx.x == 0) Stop(call.status);
}

}  // namespace

cudaError_t Launch(const DeviceCall& call, const Shape& shape,
                   cudaStream_t stream) {
  Execute<CallKind::kCollective>
      <<<shape.blocks, ThreadsOf(shape), 0, stream>>>(call, shape, {});
  return cudaGetLastError();
}

cudaError_t LaunchRows(const DeviceCall& call, const Shape& shape,
                       const DeviceRows& rows, cudaStream_t stream) {
  Execute<CallKind::kRows>
      <<<shape.blocks, ThreadsOf(shape), 0, stream>>>(call, shape, rows);
  return cudaGetLastError();
}

cudaError_t LaunchCounted(const DeviceCall& call, const Shape& shape,
                          cudaStream_t stream) {
  ExecuteCounted<<<shape.blocks, ThreadsOf(shape), 0, stream>>>(call, shape);
  return cudaGetLastError();
}

cudaError_t Preload() {
  if (cudaError_t error = PreloadRows(); error != cudaSuccess) return error;
  return LoadKernels(ExecuteCounted, Execute<CallKind::kCollective>,
                     Execute<CallKind::kRows>, WaitForEnd);
}

cudaError_t LaunchWaitForEnd(const DeviceCall& call, cudaStream_t stream) {
  WaitForEnd<<<1, 32, 0, stream>>>(call);
  return cudaGetLastError();
}

}  // namespace jax_cxl::cuda
