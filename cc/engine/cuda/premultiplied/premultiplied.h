#ifndef JAX_CXL_ENGINE_CUDA_PREMULTIPLIED_PREMULTIPLIED_H_
#define JAX_CXL_ENGINE_CUDA_PREMULTIPLIED_PREMULTIPLIED_H_

#include <cuda_runtime_api.h>

#include "cc/engine/cuda/device_call.h"

// Premultiplied sums. Each rank multiplies its input by its factor, and rounds
// the products to the dtype. The result has the same bits as an ordinary sum
// whose inputs are these products. The kernel is separate, so that the kernel
// of other calls has no code for factors.
namespace jax_cxl::cuda {

// Works like LaunchCounted (executor.h). The kernel reads the factor at
// DeviceCall::factor_at each time it runs, also in a graph.
cudaError_t LaunchPremultiplied(const DeviceCall& call, const Shape& shape,
                                cudaStream_t stream);

cudaError_t PreloadPremultiplied();

}  // namespace jax_cxl::cuda

#endif  // JAX_CXL_ENGINE_CUDA_PREMULTIPLIED_PREMULTIPLIED_H_
