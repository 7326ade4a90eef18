#ifndef JAX_CXL_BENCH_CUDA_BOUND_BOUND_H_
#define JAX_CXL_BENCH_CUDA_BOUND_BOUND_H_

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "cc/engine/cuda/executor.h"

// Measures the speed of the links, as a bound for collectives. A rank publishes
// and retrieves at the same time, through rings of the size that collectives
// use, but does not wait for other ranks.
namespace jax_cxl::cuda {

struct BoundTask {
  uint64_t publish_bytes = 0;   // written to `own` repeatedly
  uint64_t retrieve_bytes = 0;  // read from `peers` in turn
  std::byte* own = nullptr;     // host memory, ring_bytes
  std::vector<std::byte*> peers;
  uint64_t ring_bytes = 0;
  std::byte* buffer =
      nullptr;  // device memory, buffer_bytes for each direction
  uint64_t buffer_bytes = 0;
};

// Moves the bytes of `task` by loads and stores of a kernel of this shape.
cudaError_t EnqueueBoundByKernel(const BoundTask& task, const Shape& shape,
                                 cudaStream_t stream);

// Moves the bytes of `task` by the copy engines. `publishing` and `retrieving`
// are the streams of the two directions.
cudaError_t EnqueueBoundByCopyEngine(const BoundTask& task,
                                     uint64_t chunk_bytes,
                                     cudaStream_t publishing,
                                     cudaStream_t retrieving);

// Reads `bytes` of device memory from `from` on, as a computation between two
// calls does. So the caches keep nothing of the calls if `bytes` is larger than
// the cache. `bytes` is a multiple of 16.
cudaError_t EnqueueReading(const std::byte* from, uint64_t bytes,
                           cudaStream_t stream);

}  // namespace jax_cxl::cuda

#endif  // JAX_CXL_BENCH_CUDA_BOUND_BOUND_H_
