#ifndef JAX_CXL_ENGINE_CUDA_BOUND_H_
#define JAX_CXL_ENGINE_CUDA_BOUND_H_

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "cc/engine/cuda/executor.h"

// What the links allow: a rank's publication and retrieval at once, through
// rings of the size that the collectives use, without any synchronization.
namespace jax_cxl::cuda {

struct BoundTask {
  uint64_t publish_bytes = 0;   // to `own`, over and over
  uint64_t retrieve_bytes = 0;  // from `peers`, in turn
  std::byte* own = nullptr;     // host memory, ring_bytes
  std::vector<std::byte*> peers;
  uint64_t ring_bytes = 0;
  std::byte* buffer = nullptr;  // device memory, buffer_bytes for each way
  uint64_t buffer_bytes = 0;
};

// By the kernels' loads and stores, with the shape that collectives have.
cudaError_t EnqueueBoundByKernel(const BoundTask& task, const Shape& shape,
                                 cudaStream_t stream);

// By the copy engines, each way on a stream.
cudaError_t EnqueueBoundByCopyEngine(const BoundTask& task,
                                     uint64_t chunk_bytes,
                                     cudaStream_t publishing,
                                     cudaStream_t retrieving);

}  // namespace jax_cxl::cuda

#endif  // JAX_CXL_ENGINE_CUDA_BOUND_H_
