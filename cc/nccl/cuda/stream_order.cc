#include "cc/nccl/cuda/stream_order.h"

#include <utility>

#include "cc/base/cuda/cuda_status.h"

namespace jax_cxl::nccl {

using cuda::CudaStatus;

StreamOrder::~StreamOrder() {
  for (cudaEvent_t event : {done_, captured_, fork_})
    if (event != nullptr) cudaEventDestroy(event);
}

Status StreamOrder::Open() {
  for (cudaEvent_t* event : {&done_, &captured_, &fork_})
    CXL_RETURN_IF_ERROR(
        CudaStatus(cudaEventCreateWithFlags(event, cudaEventDisableTiming),
                   "cudaEventCreate"));
  return OkStatus();
}

Status StreamOrder::Before(const std::vector<cudaStream_t>& streams) {
  const cudaStream_t first = streams.front();
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  unsigned long long capture = 0;
#if CUDART_VERSION >= 13000
  CXL_RETURN_IF_ERROR(
      CudaStatus(cudaStreamGetCaptureInfo(first, &status, &capture),
                 "cudaStreamGetCaptureInfo"));
#else
  CXL_RETURN_IF_ERROR(
      CudaStatus(cudaStreamGetCaptureInfo_v2(first, &status, &capture),
                 "cudaStreamGetCaptureInfo"));
#endif
  capturing_ = status == cudaStreamCaptureStatusActive;
  for (size_t i = 1; i < streams.size(); ++i) {
    CXL_RETURN_IF_ERROR(
        CudaStatus(cudaEventRecord(fork_, streams[i]), "cudaEventRecord"));
    CXL_RETURN_IF_ERROR(CudaStatus(cudaStreamWaitEvent(first, fork_, 0),
                                   "cudaStreamWaitEvent"));
  }
  if (!capturing_) {
    unsigned long long id = 0;
    CXL_RETURN_IF_ERROR(
        CudaStatus(cudaStreamGetId(first, &id), "cudaStreamGetId"));
    // A stream's own order is enough, unless a graph may have run in between.
    if (std::exchange(last_, id) == id && capture_ == 0) return OkStatus();
    return CudaStatus(cudaStreamWaitEvent(first, done_, 0),
                      "cudaStreamWaitEvent");
  }
  if (capture == capture_)
    return CudaStatus(cudaStreamWaitEvent(first, captured_, 0),
                      "cudaStreamWaitEvent");
  capture_ = capture;
  recorded_ = nullptr;
  return CudaStatus(cudaStreamWaitEvent(first, done_, cudaEventWaitExternal),
                    "cudaStreamWaitEvent");
}

// Adds a node to the graph that records done_ after the last call. The kernels
// that the program launches next do not depend on this node: they would start
// about 6 us later. It depends on the node of the call before, so that the last
// call's is the last one to record.
Status StreamOrder::RecordInGraph(cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  cudaGraph_t graph = nullptr;
  const cudaGraphNode_t* last = nullptr;
  size_t count = 0;
  CXL_RETURN_IF_ERROR(
      CudaStatus(cudaStreamGetCaptureInfo(stream, &status, nullptr, &graph,
                                          &last, nullptr, &count),
                 "cudaStreamGetCaptureInfo"));
  std::vector<cudaGraphNode_t> after(last, last + count);
  if (recorded_ != nullptr) after.push_back(recorded_);
  return CudaStatus(cudaGraphAddEventRecordNode(&recorded_, graph, after.data(),
                                                after.size(), done_),
                    "cudaGraphAddEventRecordNode");
}

Status StreamOrder::After(const std::vector<cudaStream_t>& streams) {
  const cudaStream_t first = streams.front();
  if (capturing_) {
    CXL_RETURN_IF_ERROR(
        CudaStatus(cudaEventRecord(captured_, first), "cudaEventRecord"));
    CXL_RETURN_IF_ERROR(RecordInGraph(first));
  } else {
    CXL_RETURN_IF_ERROR(
        CudaStatus(cudaEventRecord(done_, first), "cudaEventRecord"));
  }
  for (size_t i = 1; i < streams.size(); ++i)
    CXL_RETURN_IF_ERROR(CudaStatus(
        cudaStreamWaitEvent(streams[i], capturing_ ? captured_ : done_, 0),
        "cudaStreamWaitEvent"));
  return OkStatus();
}

Status StreamOrder::Drain() {
  return CudaStatus(cudaEventSynchronize(done_), "waiting for collectives");
}

}  // namespace jax_cxl::nccl
