#ifndef JAX_CXL_ENGINE_CUDA_COPY_ENGINE_H_
#define JAX_CXL_ENGINE_CUDA_COPY_ENGINE_H_

#include <cuda_runtime_api.h>

#include <array>
#include <cstdint>

#include "cc/base/status.h"
#include "cc/engine/cuda/device_call.h"
#include "cc/engine/cuda/executor.h"
#include "cc/engine/cuda/stream_words.h"

// Executes a GPU plan by the device's copy engines, which fill the link in both
// directions at once where kernels do not, and leave the multiprocessors to
// others. What is to be reduced is copied to the device and reduced there: the
// only kernels of a call.
//
// Between two rounds a stream stores a doorbell's word and waits for the next,
// which takes several microseconds. Rounds can therefore go over two
// *pipelines* in turn, each with streams and doorbells of its own: while one
// waits, the other moves data. But a copy engine that has the next copy already
// stores the word of the one before only after that: what the peers get comes a
// chunk later. So two pipelines are for calls that also wait for reductions,
// and for those of so many chunks that one does not count. In a call a slot
// always belongs to the same pipeline, so that each pipeline's rounds are in
// order.
//
// A stream waits for what another one sends, so streams must not share one of
// the device's queues: see kDeviceQueues.
namespace jax_cxl::cuda {

// A call's GPU plan where the host can read it.
struct CopyEnginePlan {
  int pipelines = 1;  // 1 or 2
  const DeviceStep* sending = nullptr;
  const DeviceStep* receiving = nullptr;
  const MemberView* members = nullptr;
  // Device memory for what is to be reduced, of kBuffers times so many bytes.
  std::byte* staging = nullptr;
  uint64_t staging_bytes = 0;  // num_members - 1 slots
};

// Events around a call, for whoever wants to know how long it took.
struct CopyTimes {
  cudaEvent_t begin = nullptr;
  cudaEvent_t end = nullptr;
};

// A device has 8 queues for all kernels and 8 for all copies of a process
// unless these environment variables, set before CUDA starts, say 32.
inline constexpr const char* kDeviceQueues[] = {
    "CUDA_DEVICE_MAX_CONNECTIONS", "CUDA_DEVICE_MAX_COPY_CONNECTIONS"};

// Thread-compatible; Stop may be called beside anything.
class CopyEngine {
 public:
  static constexpr int kPipelines = 2;
  static constexpr int kBuffers =
      2 * kPipelines;  // to reduce one, fill another

  ~CopyEngine();

  // On the current device.
  Status Open();

  // Enqueues a call behind what is on `stream`, which waits for it. Words that
  // it needs of its members must change for it to go on: nothing but Stop ends
  // a call whose members do not come.
  cudaError_t Enqueue(const DeviceCall& call, const CopyEnginePlan& gpu_plan,
                      const CopyTimes& times, cudaStream_t stream);

  // Stops the device, as Launch does, and with it calls that wait.
  void Stop();

 private:
  class Walk;

  // A pipeline's streams and what they tell each other.
  struct Pipeline {
    cudaStream_t publishing = nullptr;
    cudaStream_t retrieving = nullptr;
    cudaStream_t reducing = nullptr;
    // Operands are in a buffer; it may be filled again.
    std::array<cudaEvent_t, 2> staged = {};
    std::array<cudaEvent_t, 2> emptied = {};
    int buffer = 0;  // the next one
    // Results for slots of each pipeline are there.
    std::array<cudaEvent_t, kPipelines> reduced = {};
  };

  StreamWords words_;
  std::array<Pipeline, kPipelines> pipelines_;
  cudaEvent_t event_ = nullptr;
  cudaStream_t stopping_ = nullptr;
};

}  // namespace jax_cxl::cuda

#endif  // JAX_CXL_ENGINE_CUDA_COPY_ENGINE_H_
