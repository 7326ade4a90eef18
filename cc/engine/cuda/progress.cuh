#ifndef JAX_CXL_ENGINE_CUDA_PROGRESS_CUH_
#define JAX_CXL_ENGINE_CUDA_PROGRESS_CUH_

#include <cstdint>

#include "cc/engine/cuda/device_call.h"
#include "cc/engine/cuda/device_memory.cuh"

namespace jax_cxl::cuda {

// What a kernel that executes a whole call reports to its host. Thread 0 of
// each block makes the reports.
class KernelProgress {
 public:
  __device__ explicit KernelProgress(const DeviceCall& call) : call_(call) {
    if (threadIdx.x != 0) return;
    started_ns_ = NowNs();
    busy_ns_ = call.scratch->busy_ns;
    if (blockIdx.x == 0) StoreWord(&call.status->started, call.call + 1);
  }

  // Reports that this block has finished the call. Called by thread 0, after a
  // barrier of the block. In the last block to finish, reports the end of the
  // call and returns true. `rows` is true if the call counts the bytes of its
  // rows.
  __device__ bool Finish(bool rows = false) const {
    if (gridDim.x > 1) {
      __threadfence();
      uint32_t& blocks_done = call_.scratch->blocks_done;
      if (atomicAdd(&blocks_done, 1) != gridDim.x - 1) return false;
      __threadfence();
      blocks_done = 0;
    }
    const uint64_t busy_ns = busy_ns_ + NowNs() - started_ns_;
    call_.scratch->busy_ns = busy_ns;
    StoreWord(&call_.status->busy_ns, busy_ns);
    if (rows) {
      const RowBytes& moved = call_.scratch->row_bytes;
      StoreWord(&call_.status->row_bytes.published, LoadWord(&moved.published));
      StoreWord(&call_.status->row_bytes.retrieved, LoadWord(&moved.retrieved));
    }
    StoreWord(&call_.status->finished, call_.call + 1);
    return true;
  }

 private:
  const DeviceCall& call_;
  uint64_t started_ns_ = 0;
  uint64_t busy_ns_ = 0;
};

}  // namespace jax_cxl::cuda

#endif  // JAX_CXL_ENGINE_CUDA_PROGRESS_CUH_
