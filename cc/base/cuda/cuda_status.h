#ifndef JAX_CXL_BASE_CUDA_CUDA_STATUS_H_
#define JAX_CXL_BASE_CUDA_CUDA_STATUS_H_

#include <cuda_runtime_api.h>

#include <string_view>

#include "cc/base/status.h"

namespace jax_cxl::cuda {

// Returns "what: the CUDA error's text" as an error, or OK for cudaSuccess.
inline Status CudaStatus(cudaError_t error, std::string_view what) {
  if (error == cudaSuccess) return OkStatus();
  return Error(Code::kInternal, what, ": ", cudaGetErrorString(error));
}

}  // namespace jax_cxl::cuda

#endif  // JAX_CXL_BASE_CUDA_CUDA_STATUS_H_
