#ifndef JAX_CXL_ENGINE_CUDA_STREAM_WORDS_H_
#define JAX_CXL_ENGINE_CUDA_STREAM_WORDS_H_

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstdint>

#include "cc/base/status.h"

namespace jax_cxl::cuda {

// Words that a stream itself waits for and stores, between its copies: no
// kernel, hence no multiprocessor, takes part. A stream that waits in vain
// waits until its device is stopped.
class StreamWords {
 public:
  // Errors: kUnimplemented where the driver does not offer this.
  Status Open();

  // Until `*word`, of which the upper bits say the epoch, is `value` or more.
  cudaError_t AwaitAtLeast(cudaStream_t stream, const uint64_t* word,
                           uint64_t value) const;
  cudaError_t AwaitEqual(cudaStream_t stream, const uint64_t* word,
                         uint64_t value) const;

  // What the stream did before is visible to whoever sees the word.
  cudaError_t Store(cudaStream_t stream, uint64_t* word, uint64_t value) const;

 private:
  using Operation = CUresult (*)(CUstream, CUdeviceptr, cuuint64_t,
                                 unsigned int);

  Operation wait_ = nullptr;
  Operation write_ = nullptr;
};

}  // namespace jax_cxl::cuda

#endif  // JAX_CXL_ENGINE_CUDA_STREAM_WORDS_H_
