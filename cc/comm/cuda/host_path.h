#ifndef JAX_CXL_COMM_CUDA_HOST_PATH_H_
#define JAX_CXL_COMM_CUDA_HOST_PATH_H_

#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>
#include <unordered_map>
#include <vector>

#include "cc/base/status.h"
#include "cc/comm/call/call.h"
#include "cc/comm/cuda/device_memory.h"
#include "cc/comm/endpoint.h"

namespace jax_cxl::comm {

// Calls of one GPU that its host executes: buffers go to pinned memory, through
// the CPU engine, and back, in the order of the stream and without blocking the
// host. For pools that devices cannot use themselves (write-back memory without
// coherence, where only a processor can flush and invalidate lines; mappings
// that CUDA cannot register) and for collectives whose sizes are only known
// when they run.
//
// Not thread-safe.
class HostPath {
 public:
  // `fail` runs on any thread, with what ended a call.
  HostPath(Endpoint* endpoint, std::function<void(const Status&)> fail);
  ~HostPath();

  // On the current device.
  Status Open();

  // `table`: ragged_all_to_all's, in device memory, of 4- or 8-byte integers.
  struct Table {
    const void* entries = nullptr;
    uint64_t count = 0;
    uint64_t entry_bytes = 0;
  };
  Status Enqueue(const std::vector<int32_t>& members, const Call& call,
                 const Table& table, cudaStream_t stream);

  // Memory for calls of this size. Allocating it waits for the devices of the
  // process, on which kernels may wait for a call that is yet to be enqueued:
  // not to be left to Enqueue.
  Status Reserve(const plan::Request& request);

  // Ends the wait of this path's kernels, and with it the device.
  void Abort();

 private:
  struct Job;

  static void Run(void* job);
  Status ReserveBytes(uint64_t bytes);

  Endpoint* endpoint_;
  std::function<void(const Status&)> fail_;
  PinnedMemory<cuda::DeviceStatus> status_;
  PinnedMemory<uint64_t> finished_;  // calls done, written by the host
  PinnedMemory<std::byte> staging_;  // input, output and table of one call
  uint64_t staging_bytes_ = 0;
  uint64_t calls_ = 0;
  std::unordered_map<uint64_t, uint64_t> calls_of_group_;
  cudaEvent_t last_done_ = nullptr;
  cudaStream_t last_stream_ = nullptr;
};

}  // namespace jax_cxl::comm

#endif  // JAX_CXL_COMM_CUDA_HOST_PATH_H_
