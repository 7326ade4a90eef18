#include "cc/base/cuda/cuda_status.h"

namespace jax_cxl::cuda {

Status CudaStatus(cudaError_t error, std::string_view what) {
  if (error == cudaSuccess) return OkStatus();
  return Error(Code::kInternal, what, ": ", cudaGetErrorString(error));
}

}  // namespace jax_cxl::cuda
