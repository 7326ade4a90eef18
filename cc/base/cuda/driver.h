#ifndef JAX_CXL_BASE_CUDA_DRIVER_H_
#define JAX_CXL_BASE_CUDA_DRIVER_H_

#include <cuda_runtime_api.h>

namespace jax_cxl::cuda {

// Finds the function `name` of the driver, in the version that cuda.h declares.
// The library does not link to the driver, so that it also loads on a machine
// without a driver. Returns cudaErrorNotSupported if the driver lacks the
// function.
inline cudaError_t FindInDriver(const char* name, void** function) {
  cudaDriverEntryPointQueryResult result;
#if CUDART_VERSION >= 12050
  constexpr unsigned int kVersion = 12000;
  const cudaError_t error = cudaGetDriverEntryPointByVersion(
      name, function, kVersion, cudaEnableDefault, &result);
#else
  const cudaError_t error =
      cudaGetDriverEntryPoint(name, function, cudaEnableDefault, &result);
#endif
  if (error != cudaSuccess) return error;
  return result == cudaDriverEntryPointSuccess ? cudaSuccess
                                               : cudaErrorNotSupported;
}

}  // namespace jax_cxl::cuda

#endif  // JAX_CXL_BASE_CUDA_DRIVER_H_
