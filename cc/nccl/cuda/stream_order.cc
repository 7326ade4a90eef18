#include "cc/nccl/cuda/stream_order.h"

#include <utility>

#include "cc/base/cuda/cuda_status.h"

namespace jax_cxl::nccl {

using cuda::CudaStatus;

Status StreamOrder::Open() {
  for (cuda::Event* event : {&done_, &captured_, &fork_}) {
    CXL_ASSIGN_OR_RETURN(*event, cuda::MakeEvent());
  }
  return OkStatus();
}

Status StreamOrder::Before(const std::vector<cudaStream_t>& streams) {
  const cudaStream_t first = streams.front();
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  unsigned long long capture = 0;
  CXL_RETURN_IF_ERROR(
      CudaStatus(cudaStreamGetCaptureInfo(first, &status, &capture),
                 "cudaStreamGetCaptureInfo"));
  capturing_ = status == cudaStreamCaptureStatusActive;
  for (size_t i = 1; i < streams.size(); ++i) {
    CXL_RETURN_IF_ERROR(cuda::Record(fork_, streams[i]));
    CXL_RETURN_IF_ERROR(cuda::StreamWait(first, fork_));
  }
  if (!capturing_) {
    unsigned long long id = 0;
    CXL_RETURN_IF_ERROR(
        CudaStatus(cudaStreamGetId(first, &id), "cudaStreamGetId"));
    // A stream's own order is enough, unless a graph may have run in between.
    if (std::exchange(last_, id) == id && capture_ == 0) return OkStatus();
    return cuda::StreamWait(first, done_);
  }
  if (capture == capture_) return cuda::StreamWait(first, captured_);
  capture_ = capture;
  recorded_ = nullptr;
  return CudaStatus(
      cudaStreamWaitEvent(first, done_.get(), cudaEventWaitExternal),
      "cudaStreamWaitEvent");
}

// Adds a node to the graph that records done_ after the last call. The kernels
// that the program launches next do not depend on this node: they would start
// about 6 us later. It depends on the node of the previous call, so that the
// last call's is the last one to record.
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
                                                after.size(), done_.get()),
                    "cudaGraphAddEventRecordNode");
}

Status StreamOrder::After(const std::vector<cudaStream_t>& streams) {
  const cudaStream_t first = streams.front();
  const cuda::Event& last = capturing_ ? captured_ : done_;
  CXL_RETURN_IF_ERROR(cuda::Record(last, first));
  if (capturing_) CXL_RETURN_IF_ERROR(RecordInGraph(first));
  for (size_t i = 1; i < streams.size(); ++i)
    CXL_RETURN_IF_ERROR(cuda::StreamWait(streams[i], last));
  return OkStatus();
}

Status StreamOrder::Drain() {
  return CudaStatus(cudaEventSynchronize(done_.get()),
                    "waiting for collectives");
}

}  // namespace jax_cxl::nccl
