#ifndef JAX_CXL_NCCL_CUDA_STREAM_ORDER_H_
#define JAX_CXL_NCCL_CUDA_STREAM_ORDER_H_

#include <cuda_runtime_api.h>

#include <optional>
#include <vector>

#include "cc/base/cuda/current_device.h"
#include "cc/base/cuda/streams.h"
#include "cc/base/status.h"

namespace jax_cxl::nccl {

// Makes a device the current one of this thread while the object lives. The
// thread may then use functions of CUDA, such as allocations, even while a
// thread captures a stream. They do not become part of the graph.
class OnDevice {
 public:
  explicit OnDevice(int device) : current_(device) {
    cudaThreadExchangeStreamCaptureMode(&mode_);
  }
  ~OnDevice() { cudaThreadExchangeStreamCaptureMode(&mode_); }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

 private:
  const cuda::CurrentDevice current_;
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

// Makes a communicator's calls run one after another on its device, whatever
// their streams are, and even if graphs capture them. When a graph runs, it
// waits for the last call, and later calls wait for the graph.
//
// Not thread-safe.
class StreamOrder {
 public:
  // Makes the events on the current device.
  Status Open();

  // Call these before and after a call is enqueued on the first of its streams.
  // The call waits for the other streams, and they wait for the call.
  Status Before(const std::vector<cudaStream_t>& streams);
  Status After(const std::vector<cudaStream_t>& streams);

  // Waits for the last call.
  Status Drain();

 private:
  Status RecordInGraph(cudaStream_t stream);

  // An event that the last call records when it ends. A call in a graph also
  // records it, each time that the graph runs.
  cuda::Event done_;
  // An event that the last call of a capture records, so that later calls of
  // that capture can wait for it.
  cuda::Event captured_;
  cuda::Event fork_;
  bool capturing_ = false;              // the current call
  unsigned long long capture_ = 0;      // the last capture; 0: there was none
  cudaGraphNode_t recorded_ = nullptr;  // of the last call of this capture
  // The id of the last call's stream. No other stream ever gets this id.
  std::optional<unsigned long long> last_;
};

}  // namespace jax_cxl::nccl

#endif  // JAX_CXL_NCCL_CUDA_STREAM_ORDER_H_
