#ifndef JAX_CXL_GPU_CUDA_STARTED_H_
#define JAX_CXL_GPU_CUDA_STARTED_H_

#include <cuda_runtime_api.h>

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "cc/base/cuda/streams.h"
#include "cc/base/status.h"

namespace jax_cxl::comm {

// Results that a separate stream (`own`) computes beside XLA's stream, from
// Begin to Done. All calls are for the same device, which is the current one.
//
// Not thread-safe.
class Started {
 public:
  // Begins a computation whose result will be at `output`: `own` waits for the
  // work that is on `stream` now.
  Status Begin(const void* output, cudaStream_t stream, cudaStream_t own);
  // Ends the computation: the result at `output` is complete after the work
  // that is on `own` now.
  Status End(const void* output, cudaStream_t own);
  // Makes `stream` wait for the result at `output`. If XLA wants the result at
  // another place, copies its `bytes` bytes to `result`. Fails with kInternal
  // if no such result was started.
  Status Done(const void* output, void* result, uint64_t bytes,
              cudaStream_t stream);

 private:
  std::unordered_map<const void*, cuda::Event> events_;
  std::vector<cuda::Event> free_events_;
};

}  // namespace jax_cxl::comm

#endif  // JAX_CXL_GPU_CUDA_STARTED_H_
