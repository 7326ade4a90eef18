#ifndef JAX_CXL_ENGINE_CUDA_STREAM_WORDS_H_
#define JAX_CXL_ENGINE_CUDA_STREAM_WORDS_H_

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstdint>

#include "cc/base/status.h"

namespace jax_cxl::cuda {

// Lets a stream wait for words and store words between its copies, without a
// kernel and hence without a multiprocessor. A wait whose word never comes
// lasts until the device is stopped.
class StreamWords {
 public:
  // Fails with kUnimplemented if the driver lacks these operations.
  Status Open();

  // AwaitAtLeast makes the stream wait until `*word` is at least `value`. The
  // upper bits of both are the epoch. AwaitEqual makes it wait until `*word` is
  // `value`.
  cudaError_t AwaitAtLeast(cudaStream_t stream, const uint64_t* word,
                           uint64_t value) const;
  cudaError_t AwaitEqual(cudaStream_t stream, const uint64_t* word,
                         uint64_t value) const;

  // Makes the stream store `value` in the word. A reader of the word sees all
  // earlier work of the stream.
  cudaError_t Store(cudaStream_t stream, uint64_t* word, uint64_t value) const;

 private:
  using Operation = CUresult (*)(CUstream, CUdeviceptr, cuuint64_t,
                                 unsigned int);

  Operation wait_ = nullptr;
  Operation write_ = nullptr;
};

}  // namespace jax_cxl::cuda

#endif  // JAX_CXL_ENGINE_CUDA_STREAM_WORDS_H_
