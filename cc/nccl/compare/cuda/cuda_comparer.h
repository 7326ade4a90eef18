#ifndef JAX_CXL_NCCL_COMPARE_CUDA_CUDA_COMPARER_H_
#define JAX_CXL_NCCL_COMPARE_CUDA_CUDA_COMPARER_H_

#include <memory>

#include "cc/base/status.h"
#include "cc/nccl/compare/comparison.h"

namespace jax_cxl::nccl {

// Returns a GPU, as it compares results. `ordinal` is the number of the device
// in this process.
Result<std::unique_ptr<Comparer>> MakeCudaComparer(int ordinal);

}  // namespace jax_cxl::nccl

#endif  // JAX_CXL_NCCL_COMPARE_CUDA_CUDA_COMPARER_H_
