#ifndef JAX_CXL_NCCL_CUDA_INNER_GPUS_H_
#define JAX_CXL_NCCL_CUDA_INNER_GPUS_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "cc/base/status.h"
#include "cc/nccl/levels/steps.h"

// The GPUs of one host in collectives in levels.
namespace jax_cxl::nccl {

// Returns why the GPU cannot access the memory of the others, or OK.
Status CheckPeerAccess(int ordinal, std::span<const int> ordinals);

// Runs each kind of step inside a host once, on the current device. NCCL
// connects the GPUs and allocates memory in its first operations. Later, an
// allocation might wait for kernels that wait for other GPUs.
Status ConnectInner(const Levels& levels);

}  // namespace jax_cxl::nccl

#endif  // JAX_CXL_NCCL_CUDA_INNER_GPUS_H_
