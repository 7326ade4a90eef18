#ifndef JAX_CXL_ENGINE_CUDA_PREMULTIPLIED_PREMULTIPLIED_H_
#define JAX_CXL_ENGINE_CUDA_PREMULTIPLIED_PREMULTIPLIED_H_

#include <cuda_runtime_api.h>

#include "cc/engine/cuda/device_call.h"

// Premultiplied sums. Each rank multiplies its input by its factor, and rounds
// the products to the dtype. The sum of the products has the bits that a sum of
// such inputs has. The kernel is separate, so that the kernel of other calls
// has no code for factors.
namespace jax_cxl::cuda {

// Works like LaunchCounted (executor.h). The kernel reads DeviceCall::factor_at
// when it runs, in a graph each time.
cudaError_t LaunchPremultiplied(const DeviceCall& call, const Shape& shape,
                                cudaStream_t stream);

// See Preload (executor.h).
cudaError_t PreloadPremultiplied();

}  // namespace jax_cxl::cuda

#endif  // JAX_CXL_ENGINE_CUDA_PREMULTIPLIED_PREMULTIPLIED_H_
