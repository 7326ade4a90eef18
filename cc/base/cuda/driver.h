#ifndef JAX_CXL_BASE_CUDA_DRIVER_H_
#define JAX_CXL_BASE_CUDA_DRIVER_H_

#include <cuda_runtime_api.h>

namespace jax_cxl::cuda {

// Returns the function `name` of the driver, in the version that cuda.h
// declares, or null. The library does not link to the driver, so that it also
// loads on a machine without a driver.
template <typename Function>
Function InDriver(const char* name) {
  constexpr unsigned int kVersion = 12000;
  void* function = nullptr;
  cudaDriverEntryPointQueryResult result;
  if (cudaGetDriverEntryPointByVersion(
          name, &function, kVersion, cudaEnableDefault, &result) != cudaSuccess)
    return nullptr;
  return reinterpret_cast<Function>(function);
}

}  // namespace jax_cxl::cuda

#endif  // JAX_CXL_BASE_CUDA_DRIVER_H_
