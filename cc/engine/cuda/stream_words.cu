#include "cc/base/cuda/cuda_status.h"
#include "cc/base/cuda/driver.h"
#include "cc/engine/cuda/stream_words.h"

namespace jax_cxl::cuda {
namespace {

Status Find(const char* name, void** function) {
  const cudaError_t error = FindInDriver(name, function);
  if (error != cudaErrorNotSupported) return CudaStatus(error, name);
  return Error(Code::kUnimplemented, "the CUDA driver has no ", name,
               "; install a newer driver");
}

CUdeviceptr Address(const uint64_t* word) {
  return reinterpret_cast<CUdeviceptr>(word);
}

// CUresult and cudaError_t use the same numbers.
cudaError_t RuntimeError(CUresult result) {
  return static_cast<cudaError_t>(result);
}

}  // namespace

Status StreamWords::Open() {
  CXL_RETURN_IF_ERROR(
      Find("cuStreamWaitValue64", reinterpret_cast<void**>(&wait_)));
  return Find("cuStreamWriteValue64", reinterpret_cast<void**>(&write_));
}

cudaError_t StreamWords::AwaitAtLeast(cudaStream_t stream, const uint64_t* word,
                                      uint64_t value) const {
  return RuntimeError(
      wait_(stream, Address(word), value, CU_STREAM_WAIT_VALUE_GEQ));
}

cudaError_t StreamWords::AwaitEqual(cudaStream_t stream, const uint64_t* word,
                                    uint64_t value) const {
  return RuntimeError(
      wait_(stream, Address(word), value, CU_STREAM_WAIT_VALUE_EQ));
}

cudaError_t StreamWords::Store(cudaStream_t stream, uint64_t* word,
                               uint64_t value) const {
  return RuntimeError(
      write_(stream, Address(word), value, CU_STREAM_WRITE_VALUE_DEFAULT));
}

}  // namespace jax_cxl::cuda
