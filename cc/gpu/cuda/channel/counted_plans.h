#ifndef JAX_CXL_GPU_CUDA_CHANNEL_COUNTED_PLANS_H_
#define JAX_CXL_GPU_CUDA_CHANNEL_COUNTED_PLANS_H_

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "cc/base/cuda/device_memory.h"
#include "cc/base/status.h"
#include "cc/engine/gpu_plan/channel_words.h"
#include "cc/engine/gpu_plan/gpu_plan.h"
#include "cc/gpu/cuda/channel/plan_store.h"

namespace jax_cxl::comm {

// The GPU plan of a kind of call, and what the device writes into the journal.
struct CountedPlan {
  StoredPlan plan;
  const cuda::JournalEntry* record = nullptr;  // device memory
  uint64_t descriptor_hash = 0;
  std::vector<cuda::DeviceStep> steps;  // in memory that the host can read
};

// The GPU plans of calls that are numbered on their device (CountedChannel),
// for one device. A plan never moves, because graphs may refer to it.
//
// Not thread-safe.
class CountedPlans {
 public:
  CountedPlans() = default;
  ~CountedPlans();
  CountedPlans(const CountedPlans&) = delete;
  CountedPlans& operator=(const CountedPlans&) = delete;

  // Makes the stream that copies plans, on the current device.
  Status Open();

  // Returns null if there is no plan with this key.
  const CountedPlan* Find(const std::string& key) const;

  // Copies the plan to the device, and waits for the copy. Other streams may
  // use the plan at once.
  Result<const CountedPlan*> Store(const std::string& key,
                                   const cuda::GpuPlan& gpu_plan, bool flagged,
                                   const cuda::JournalEntry& record);

 private:
  Result<std::byte*> Allocate(uint64_t bytes);

  cudaStream_t stream_ = nullptr;
  std::vector<DeviceMemory<std::byte>> chunks_;
  uint64_t chunk_bytes_ = 0;  // of the last chunk
  uint64_t used_ = 0;         // of it
  std::unordered_map<std::string, std::unique_ptr<CountedPlan>> plans_;
};

}  // namespace jax_cxl::comm

#endif  // JAX_CXL_GPU_CUDA_CHANNEL_COUNTED_PLANS_H_
