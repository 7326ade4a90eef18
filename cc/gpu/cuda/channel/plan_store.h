#ifndef JAX_CXL_GPU_CUDA_CHANNEL_PLAN_STORE_H_
#define JAX_CXL_GPU_CUDA_CHANNEL_PLAN_STORE_H_

#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>

#include "cc/base/cuda/device_memory.h"
#include "cc/base/status.h"
#include "cc/engine/gpu_plan/gpu_plan.h"
#include "cc/gpu/relay/relay_plan.h"

namespace jax_cxl::comm {

// A GPU plan in the memory of a device.
struct StoredPlan {
  const cuda::DeviceStep* sending = nullptr;
  const cuda::DeviceStep* receiving = nullptr;
  // A copy of these steps in memory that the host can read.
  const cuda::DeviceStep* host_sending = nullptr;
  const cuda::DeviceStep* host_receiving = nullptr;
  uint32_t num_sending = 0;
  uint32_t num_receiving = 0;
  uint64_t rounds = 0;
  uint64_t bytes_published = 0;
  uint64_t bytes_retrieved = 0;
  bool flagged = false;  // for a short message (see flagged.h)
  uint32_t flagged_blocks = 0;
  uint64_t flagged_sources = 0;  // cuda::flagged::SourcesOf
  // The host's work for the call, if there is a relay.
  std::shared_ptr<const RelayPlan> relay;
};

// The GPU plans of one device. They lie one after another in memory allocated
// at the start, because a later allocation would wait for kernels that wait for
// peers.
//
// Not thread-safe.
class PlanStore {
 public:
  // Allocates the memory on the current device.
  Status Open();

  // Returns null if there is no plan with this key.
  const StoredPlan* Find(const std::string& key) const;

  // Copies the GPU plan to the device, in the order of `stream`. Another stream
  // sees the plan only after it has waited for `stream`, as the calls of a
  // channel do.
  Result<const StoredPlan*> Store(const std::string& key,
                                  const cuda::GpuPlan& gpu_plan, bool flagged,
                                  std::shared_ptr<const RelayPlan> relay,
                                  cudaStream_t stream);

 private:
  Status Clear();

  DeviceMemory<cuda::DeviceStep> steps_;
  PinnedMemory<cuda::DeviceStep> source_;  // source of the copies to `steps_`
  uint64_t used_ = 0;
  std::unordered_map<std::string, StoredPlan> plans_;
};

}  // namespace jax_cxl::comm

#endif  // JAX_CXL_GPU_CUDA_CHANNEL_PLAN_STORE_H_
