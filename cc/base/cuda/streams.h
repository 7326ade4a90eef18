#ifndef JAX_CXL_BASE_CUDA_STREAMS_H_
#define JAX_CXL_BASE_CUDA_STREAMS_H_

#include <cuda_runtime_api.h>

#include <memory>

#include "cc/base/cuda/cuda_status.h"
#include "cc/base/status.h"

// Streams and events of the current device. The default stream does not wait
// for these streams.
namespace jax_cxl::cuda {

struct Destroy {
  void operator()(cudaStream_t stream) const { cudaStreamDestroy(stream); }
  void operator()(cudaEvent_t event) const { cudaEventDestroy(event); }
};
using Stream = std::unique_ptr<CUstream_st, Destroy>;
using Event = std::unique_ptr<CUevent_st, Destroy>;

inline Result<Stream> MakeStream() {
  cudaStream_t stream = nullptr;
  CXL_RETURN_IF_ERROR(
      CudaStatus(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking),
                 "cudaStreamCreate"));
  return Stream(stream);
}

// Makes a stream whose blocks start before those of the computation.
inline Result<Stream> MakeUrgentStream() {
  int least = 0, greatest = 0;
  cudaDeviceGetStreamPriorityRange(&least, &greatest);
  cudaStream_t stream = nullptr;
  CXL_RETURN_IF_ERROR(CudaStatus(
      cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, greatest),
      "cudaStreamCreate"));
  return Stream(stream);
}

inline Result<Event> MakeEvent(unsigned flags = cudaEventDisableTiming) {
  cudaEvent_t event = nullptr;
  CXL_RETURN_IF_ERROR(
      CudaStatus(cudaEventCreateWithFlags(&event, flags), "cudaEventCreate"));
  return Event(event);
}

inline Status Record(const Event& event, cudaStream_t stream) {
  return CudaStatus(cudaEventRecord(event.get(), stream), "cudaEventRecord");
}

// Makes `stream` wait for the event.
inline Status StreamWait(cudaStream_t stream, const Event& event) {
  return CudaStatus(cudaStreamWaitEvent(stream, event.get()),
                    "cudaStreamWaitEvent");
}

}  // namespace jax_cxl::cuda

#endif  // JAX_CXL_BASE_CUDA_STREAMS_H_
