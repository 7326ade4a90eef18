#ifndef JAX_CXL_STORE_CUDA_KERNELS_BLOCK_CHECKSUMS_H_
#define JAX_CXL_STORE_CUDA_KERNELS_BLOCK_CHECKSUMS_H_

#include <cuda_runtime_api.h>

#include <cstdint>

namespace jax_cxl::cuda {

// Enqueues the computation of the checksum (xxh3_lanes.h) of each of `count`
// blocks. `blocks` contains the addresses of the blocks in device memory, which
// are multiples of 16. `blocks` and `checksums` may be pinned memory of the
// host. `bytes` is the size of a block, a multiple of 1 KiB.
cudaError_t LaunchBlockChecksums(const uint64_t* blocks, uint64_t count,
                                 uint64_t bytes, uint64_t* checksums,
                                 cudaStream_t stream);

}  // namespace jax_cxl::cuda

#endif  // JAX_CXL_STORE_CUDA_KERNELS_BLOCK_CHECKSUMS_H_
