#ifndef JAX_CXL_BASE_CUDA_DEVICE_MEMORY_H_
#define JAX_CXL_BASE_CUDA_DEVICE_MEMORY_H_

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstring>
#include <memory>
#include <utility>

#include "cc/base/cuda/cuda_status.h"
#include "cc/base/status.h"

// Functions that allocate memory which is kept for a long time. No collective
// calls them.
namespace jax_cxl::comm {

struct FreeDevice {
  void operator()(void* memory) const { cudaFree(memory); }
};
struct FreePinned {
  void operator()(void* memory) const { cudaFreeHost(memory); }
};

template <typename T>
using DeviceMemory = std::unique_ptr<T[], FreeDevice>;
template <typename T>
using PinnedMemory = std::unique_ptr<T[], FreePinned>;

// Waits until the current device has finished the work of earlier cudaMemset
// and cudaMemcpy calls. The streams of XLA and of this project do not wait for
// this work.
inline Status WaitForCopies() {
  return cuda::CudaStatus(cudaStreamSynchronize(cudaStreamLegacy),
                          "cudaStreamSynchronize");
}

// Returns `count` zeroed elements in the current device's memory.
template <typename T>
Result<DeviceMemory<T>> AllocateDevice(size_t count) {
  void* memory = nullptr;
  CXL_RETURN_IF_ERROR(
      cuda::CudaStatus(cudaMalloc(&memory, count * sizeof(T)), "cudaMalloc"));
  DeviceMemory<T> owned(static_cast<T*>(memory));
  CXL_RETURN_IF_ERROR(
      cuda::CudaStatus(cudaMemset(memory, 0, count * sizeof(T)), "cudaMemset"));
  CXL_RETURN_IF_ERROR(WaitForCopies());
  return Result<DeviceMemory<T>>(std::move(owned));
}

// Copies `count` elements to the current device's memory.
template <typename T>
Status CopyToDevice(T* to, const T* from, size_t count) {
  CXL_RETURN_IF_ERROR(cuda::CudaStatus(
      cudaMemcpy(to, from, count * sizeof(T), cudaMemcpyHostToDevice),
      "copying a channel to the device"));
  return WaitForCopies();
}

// Returns `count` zeroed elements of host memory that every device can access.
template <typename T>
Result<PinnedMemory<T>> AllocatePinned(size_t count) {
  void* memory = nullptr;
  CXL_RETURN_IF_ERROR(cuda::CudaStatus(
      cudaHostAlloc(&memory, count * sizeof(T),
                    cudaHostAllocPortable | cudaHostAllocMapped),
      "cudaHostAlloc"));
  std::memset(memory, 0, count * sizeof(T));
  return PinnedMemory<T>(static_cast<T*>(memory));
}

}  // namespace jax_cxl::comm

#endif  // JAX_CXL_BASE_CUDA_DEVICE_MEMORY_H_
