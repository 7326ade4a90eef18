#include "cc/gpu/cuda/started.h"

#include "cc/base/cuda/cuda_status.h"
#include "cc/base/cuda/streams.h"

namespace jax_cxl::comm {

Started::~Started() {
  for (auto& [output, event] : events_) cudaEventDestroy(event);
  for (cudaEvent_t event : free_events_) cudaEventDestroy(event);
}

Result<cudaEvent_t> Started::TakeEvent() {
  cudaEvent_t event = nullptr;
  if (!free_events_.empty()) {
    event = free_events_.back();
    free_events_.pop_back();
    return event;
  }
  CXL_RETURN_IF_ERROR(cuda::MakeEvent(&event));
  return event;
}

Status Started::Begin(const void* output, cudaStream_t stream,
                      cudaStream_t own) {
  CXL_ASSIGN_OR_RETURN(cudaEvent_t event, TakeEvent());
  if (auto old = events_.find(output); old != events_.end())
    free_events_.push_back(old->second);  // XLA has dropped that result
  events_[output] = event;
  CXL_RETURN_IF_ERROR(cuda::Record(event, stream));
  return cuda::StreamWait(own, event);
}

Status Started::End(const void* output, cudaStream_t own) {
  return cuda::Record(events_.at(output), own);
}

Status Started::Done(const void* output, void* result, uint64_t bytes,
                     cudaStream_t stream) {
  auto found = events_.find(output);
  if (found == events_.end())
    return Error(Code::kInternal,
                 "XLA moved a result while its collective was under way: call "
                 "done() in the same program as the start, and do not carry "
                 "the future through a loop");
  const cudaEvent_t event = found->second;
  events_.erase(found);
  free_events_.push_back(event);
  CXL_RETURN_IF_ERROR(cuda::StreamWait(stream, event));
  if (output == result) return OkStatus();
  return cuda::CudaStatus(
      cudaMemcpyAsync(result, output, bytes, cudaMemcpyDeviceToDevice, stream),
      "copying a result");
}

}  // namespace jax_cxl::comm
