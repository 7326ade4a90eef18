#ifndef JAX_CXL_GPU_CUDA_HOST_PATH_H_
#define JAX_CXL_GPU_CUDA_HOST_PATH_H_

#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>
#include <unordered_map>
#include <vector>

#include "cc/base/cuda/device_memory.h"
#include "cc/base/status.h"
#include "cc/comm/call/call.h"
#include "cc/comm/endpoint.h"
#include "cc/engine/cuda/executor.h"

namespace jax_cxl::comm {

// Calls of one GPU that its host executes. Buffers are copied to pinned memory,
// go through the CPU engine, and are copied back, in the order of the stream
// and without blocking the host. Used for pools that devices cannot access,
// because CUDA cannot register their mapping.
//
// Not thread-safe.
class HostPath {
 public:
  HostPath(Endpoint* endpoint, std::function<void(const Status&)> fail);
  ~HostPath();

  Status Open();

  Status Enqueue(const std::vector<int32_t>& members, const Call& call,
                 cudaStream_t stream);

  // Allocates memory for calls with this request. An allocation waits for the
  // kernels that run on the process's devices, and these kernels may wait for a
  // call that is not enqueued yet. So the memory must be reserved before
  // Enqueue, which would otherwise allocate it.
  Status Reserve(const plan::Request& request);

  // Ends the wait of this path's kernels, which stops the device.
  void Abort();

 private:
  struct Job;

  static void Run(void* job);
  Status ReserveBytes(uint64_t bytes);

  Endpoint* endpoint_;
  std::function<void(const Status&)> fail_;
  PinnedMemory<cuda::DeviceStatus> status_;
  PinnedMemory<uint64_t>
      finished_;  // number of finished calls, written by the host
  // Input, output, and indices or slices of one call.
  PinnedMemory<std::byte> staging_;
  uint64_t staging_bytes_ = 0;
  uint64_t calls_ = 0;
  std::unordered_map<uint64_t, uint64_t> calls_of_group_;
  cudaEvent_t last_done_ = nullptr;
  cudaStream_t last_stream_ = nullptr;
};

}  // namespace jax_cxl::comm

#endif  // JAX_CXL_GPU_CUDA_HOST_PATH_H_
