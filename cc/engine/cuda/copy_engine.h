#ifndef JAX_CXL_ENGINE_CUDA_COPY_ENGINE_H_
#define JAX_CXL_ENGINE_CUDA_COPY_ENGINE_H_

#include <cuda_runtime_api.h>

#include <array>
#include <cstdint>

#include "cc/base/status.h"
#include "cc/engine/cuda/device_call.h"
#include "cc/engine/cuda/executor.h"

// Executes a program by the device's copy engines, which fill the link in both
// directions at once where kernels do not, and leave the multiprocessors to
// others. What is to be reduced is copied to the device and reduced there.
//
// Between two copies of a stream lies a small kernel that rings a doorbell and
// waits for the next, which takes as long as a small copy. Rounds therefore go
// over several *lines* in turn, each with streams and doorbells of its own:
// while some synchronize, others move data. A slot always belongs to the same
// line, so that each line's rounds are in order.
//
// Kernels of one stream wait for what another stream sends, so streams must not
// share one of the device's queues: see kDeviceQueues.
namespace jax_cxl::cuda {

// A call's program where the host can read it.
struct HostProgram {
  const DeviceStep* sending = nullptr;
  const DeviceStep* receiving = nullptr;
  const MemberView* members = nullptr;
  uint64_t rounds = 0;
  // Device memory for what is to be reduced, of kLines times so many bytes.
  std::byte* staging = nullptr;
  uint64_t staging_bytes = 0;  // of one line: num_members - 1 slots
};

// A device has 8 queues for all kernels and 8 for all copies of a process
// unless these environment variables, set before CUDA starts, say 32.
inline constexpr const char* kDeviceQueues[] = {
    "CUDA_DEVICE_MAX_CONNECTIONS", "CUDA_DEVICE_MAX_COPY_CONNECTIONS"};

// Not thread-safe.
class CopyEngine {
 public:
  static constexpr int kLines = 4;

  ~CopyEngine();

  // On the current device.
  Status Open();

  // Enqueues a call behind what is on `stream`, which waits for it. All lines
  // of the `shape` that other calls use advance with it. Ends as Launch does.
  cudaError_t Enqueue(const DeviceCall& call, const HostProgram& program,
                      const Shape& shape, cudaStream_t stream);

 private:
  class Walk;

  std::array<cudaStream_t, kLines> publishing_ = {};
  std::array<cudaStream_t, kLines> retrieving_ = {};
  std::array<cudaEvent_t, kLines> reduced_ = {};
  cudaEvent_t event_ = nullptr;
};

}  // namespace jax_cxl::cuda

#endif  // JAX_CXL_ENGINE_CUDA_COPY_ENGINE_H_
