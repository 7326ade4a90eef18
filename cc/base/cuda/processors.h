#ifndef JAX_CXL_BASE_CUDA_PROCESSORS_H_
#define JAX_CXL_BASE_CUDA_PROCESSORS_H_

#include <cuda_runtime_api.h>

#include <cstdint>

namespace jax_cxl::cuda {

// Sets `blocks` to the number of thread blocks in a grid with `of_processor`
// blocks for each multiprocessor of the current device.
inline cudaError_t BlocksOfDevice(uint32_t of_processor, uint64_t* blocks) {
  int device = 0;
  int processors = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error == cudaSuccess)
    error = cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount,
                                   device);
  *blocks = uint64_t{of_processor} * static_cast<uint64_t>(processors);
  return error;
}

}  // namespace jax_cxl::cuda

#endif  // JAX_CXL_BASE_CUDA_PROCESSORS_H_
