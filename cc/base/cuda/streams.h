#ifndef JAX_CXL_BASE_CUDA_STREAMS_H_
#define JAX_CXL_BASE_CUDA_STREAMS_H_

#include <cuda_runtime_api.h>

#include "cc/base/cuda/cuda_status.h"
#include "cc/base/status.h"

// Streams and events of the current device. The default stream does not wait
// for these streams, and the events do not measure times.
namespace jax_cxl::cuda {

inline Status MakeStream(cudaStream_t* stream) {
  return CudaStatus(cudaStreamCreateWithFlags(stream, cudaStreamNonBlocking),
                    "cudaStreamCreate");
}

// Makes a stream whose blocks start before those of the computation.
inline Status MakeUrgentStream(cudaStream_t* stream) {
  int least = 0, greatest = 0;
  cudaDeviceGetStreamPriorityRange(&least, &greatest);
  return CudaStatus(
      cudaStreamCreateWithPriority(stream, cudaStreamNonBlocking, greatest),
      "cudaStreamCreate");
}

inline Status MakeEvent(cudaEvent_t* event) {
  return CudaStatus(cudaEventCreateWithFlags(event, cudaEventDisableTiming),
                    "cudaEventCreate");
}

inline Status Record(cudaEvent_t event, cudaStream_t stream) {
  return CudaStatus(cudaEventRecord(event, stream), "cudaEventRecord");
}

// Makes `stream` wait for the event.
inline Status StreamWait(cudaStream_t stream, cudaEvent_t event) {
  return CudaStatus(cudaStreamWaitEvent(stream, event), "cudaStreamWaitEvent");
}

}  // namespace jax_cxl::cuda

#endif  // JAX_CXL_BASE_CUDA_STREAMS_H_
