#ifndef JAX_CXL_ENGINE_CUDA_EXECUTOR_H_
#define JAX_CXL_ENGINE_CUDA_EXECUTOR_H_

#include <cuda_runtime_api.h>

#include "cc/engine/cuda/device_call.h"
#include "cc/engine/cuda/rows.h"

namespace jax_cxl::cuda {

// Enqueues one call on `stream` and returns. Never synchronizes.
//
// A call cannot complete if the host raises DeviceStatus::abort, if a wait
// takes longer than its deadline, or if a peer is in another call. Such a call
// ends in a trap. The kernel first reports the fault, and waits at most a few
// seconds for the host to publish the reason. Then it stops the device, so that
// no program reads an incomplete result. Every later CUDA call of the process
// fails.
cudaError_t Launch(const DeviceCall& call, const Shape& shape,
                   cudaStream_t stream);

// As above, for an operation that moves `rows`.
cudaError_t LaunchRows(const DeviceCall& call, const Shape& shape,
                       const DeviceRows& rows, cudaStream_t stream);

// Enqueues a call whose numbers live in the memory of the device
// (DeviceScratch::position), so that the graph of a stream capture can execute
// the kernel any number of times. The device also writes the channel's journal.
//
// Such a call does not stop the device if it cannot complete. It waits until
// the host raises DeviceStatus::abort, and then leaves an undefined result.
cudaError_t LaunchCounted(const DeviceCall& call, const Shape& shape,
                          cudaStream_t stream);

// Enqueues a wait until all members have finished the calls before this one.
// Required when a kernel call follows a copy-engine call: the two lay out slots
// differently, so their doorbells do not protect each other's data. If the wait
// cannot complete, it ends in a trap, as Launch describes.
cudaError_t LaunchWaitForEnd(const DeviceCall& call, cudaStream_t stream);

// Load kernels on the current device. Loading a kernel later would wait for
// running kernels, which may wait for peers that are loading theirs. Preload
// loads the kernels of this header.
template <typename... Kernels>
cudaError_t LoadKernels(Kernels*... kernels) {
  cudaFuncAttributes attributes;
  cudaError_t error = cudaSuccess;
  ((error = error != cudaSuccess
                ? error
                : cudaFuncGetAttributes(
                      &attributes, reinterpret_cast<const void*>(kernels))),
   ...);
  return error;
}
cudaError_t Preload();

}  // namespace jax_cxl::cuda

#endif  // JAX_CXL_ENGINE_CUDA_EXECUTOR_H_
