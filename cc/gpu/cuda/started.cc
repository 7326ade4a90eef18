#include "cc/gpu/cuda/started.h"

#include <utility>

#include "cc/base/cuda/cuda_status.h"

namespace jax_cxl::comm {

Status Started::Begin(const void* output, cudaStream_t stream,
                      cudaStream_t own) {
  // If XLA has dropped an earlier result at this place, its event is still
  // there.
  cuda::Event& event = events_[output];
  if (event == nullptr && !free_events_.empty()) {
    event = std::move(free_events_.back());
    free_events_.pop_back();
  } else if (event == nullptr) {
    CXL_ASSIGN_OR_RETURN(event, cuda::MakeEvent());
  }
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
  const cuda::Event& event =
      free_events_.emplace_back(std::move(found->second));
  events_.erase(found);
  CXL_RETURN_IF_ERROR(cuda::StreamWait(stream, event));
  if (output == result) return OkStatus();
  return cuda::CudaStatus(
      cudaMemcpyAsync(result, output, bytes, cudaMemcpyDeviceToDevice, stream),
      "copying a result");
}

}  // namespace jax_cxl::comm
