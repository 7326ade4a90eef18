#ifndef JAX_CXL_GPU_CUDA_CHANNEL_PLAN_STORE_H_
#define JAX_CXL_GPU_CUDA_CHANNEL_PLAN_STORE_H_

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "cc/base/cuda/device_memory.h"
#include "cc/base/cuda/streams.h"
#include "cc/base/status.h"
#include "cc/engine/gpu_plan/channel_words.h"
#include "cc/engine/gpu_plan/gpu_plan.h"
#include "cc/gpu/relay/relay_plan.h"

namespace jax_cxl::comm {

// The GPU plan of a kind of call.
struct StoredPlan {
  cuda::GpuPlan gpu_plan;
  bool flagged = false;  // for a short message (see flagged.h)
  // The steps in the memory of the device. Null if the plan has flags: such a
  // plan travels with each launch.
  const cuda::DeviceStep* sending = nullptr;
  const cuda::DeviceStep* receiving = nullptr;
  // The host's work for a call of a StreamChannel, if there is a relay.
  std::shared_ptr<const RelayPlan> relay;
  // What the device writes into the journal for a call of a CountedChannel, in
  // the memory of the device.
  const cuda::JournalEntry* record = nullptr;
  uint64_t descriptor_hash = 0;  // of the record
};

// The GPU plans of one device. A plan never moves and is never removed, because
// graphs may refer to it.
//
// The plans lie in chunks of memory. CUDA allows an allocation to wait for all
// kernels of the device, and these may wait for kernels that this thread is
// about to enqueue, for another GPU or for another rank on the same GPU. So
// MakeRoom allocates a chunk before a group of calls begins. Nothing else waits
// for kernels: a plan is copied on a stream of its own.
//
// Not thread-safe.
class PlanStore {
 public:
  // The plans of 7 GiB of data in slots of 1 MiB fit into a chunk.
  static constexpr uint64_t kChunkBytes = uint64_t{4} << 20;

  // Returns true if little room is left, as at the start. Then call MakeRoom,
  // which allocates a chunk on the current device, as soon as this thread has
  // enqueued all calls for which kernels wait.
  bool lacks_room() const { return left_ < kRoomBytes; }
  Status MakeRoom() { return Add(kChunkBytes); }

  const StoredPlan* Find(const std::string& key) const;

  // Copies the plan to the device, and waits for the copy. All streams may use
  // the plan at once. `record` is null for a call of a StreamChannel, and
  // `relay` for one of a CountedChannel. A plan for which there is no room gets
  // a chunk of its own; see above for how long this may take.
  Result<const StoredPlan*> Store(const std::string& key,
                                  cuda::GpuPlan gpu_plan, bool flagged,
                                  std::shared_ptr<const RelayPlan> relay,
                                  const cuda::JournalEntry* record = nullptr);

 private:
  // The plan of a message of 1 GiB takes about half of it.
  static constexpr uint64_t kRoomBytes = uint64_t{1} << 20;

  Status Add(uint64_t bytes);
  template <typename T>
  Result<const T*> Put(std::span<const T> data);

  cuda::Stream stream_;
  std::vector<DeviceMemory<std::byte>> chunks_;
  uint64_t left_ = 0;  // bytes, in the last chunk
  std::byte* next_ = nullptr;
  std::unordered_map<std::string, StoredPlan> plans_;
};

}  // namespace jax_cxl::comm

#endif  // JAX_CXL_GPU_CUDA_CHANNEL_PLAN_STORE_H_
