#include "cc/engine/cuda/counted.cuh"
#include "cc/engine/cuda/executor.h"
#include "cc/engine/cuda/premultiplied/premultiplied.h"
#include "cc/engine/cuda/slot_call.cuh"

namespace jax_cxl::cuda {
namespace {

// Loads the factor if it is in device memory. Repeats it over 8 bytes, as
// Multiply expects it.
__device__ void TakeFactor(DeviceCall* call) {
  uint64_t factor = call->factor;
  if (call->factor_at != nullptr) {
    const auto* from = static_cast<const uint8_t*>(call->factor_at);
    for (uint32_t i = 0; i < call->factor_bytes; ++i)
      factor |= uint64_t{from[i]} << (8 * i);
  }
  for (uint32_t bytes = call->factor_bytes; bytes < sizeof(factor); bytes *= 2)
    factor |= factor << (8 * bytes);
  call->factor = factor;
}

__global__ void __launch_bounds__(kMaxThreads + kControlWarps * 32, 1)
    ExecutePremultiplied(const __grid_constant__ DeviceCall given,
                         const __grid_constant__ Shape shape) {
  __shared__ BlockState state;
  __shared__ DeviceCall call;
  state.Reset(given.scratch->released[blockIdx.x]);
  if (!TakePosition(given, /*flagged=*/false, &call)) return;
  if (threadIdx.x == 0) TakeFactor(&call);  // others read it after a barrier
  Run<CallKind::kPremultiplied, /*counted=*/true>(call, shape, {}, state);
}

}  // namespace

cudaError_t LaunchPremultiplied(const DeviceCall& call, const Shape& shape,
                                cudaStream_t stream) {
  ExecutePremultiplied<<<shape.blocks, ThreadsOf(shape), 0, stream>>>(call,
                                                                      shape);
  return cudaGetLastError();
}

cudaError_t PreloadPremultiplied() { return LoadKernels(ExecutePremultiplied); }

}  // namespace jax_cxl::cuda
