#include "cc/gpu/cuda/channel/plan_store.h"

#include <algorithm>
#include <utility>

#include "cc/base/cuda/cuda_status.h"
#include "cc/engine/cuda/flagged/flagged.h"
#include "cc/engine/gpu_plan/flagged_ring.h"

namespace jax_cxl::comm {
namespace {

// The number of steps for which there is memory. They take 36 MiB. This is
// enough for the plan of a message of 64 GiB in slots of 1 MiB, or for the
// plans of hundreds of smaller messages.
constexpr uint64_t kSteps = uint64_t{1} << 19;

}  // namespace

Status PlanStore::Open() {
  CXL_ASSIGN_OR_RETURN(steps_, AllocateDevice<cuda::DeviceStep>(kSteps));
  CXL_ASSIGN_OR_RETURN(source_, AllocatePinned<cuda::DeviceStep>(kSteps));
  return OkStatus();
}

const StoredPlan* PlanStore::Find(const std::string& key) const {
  auto found = plans_.find(key);
  return found == plans_.end() ? nullptr : &found->second;
}

// Forgets all plans, and waits until the device no longer uses them. Most jobs
// repeat a few collectives, whose plans do not fill this memory. If plans fill
// it, the job's shapes keep changing, and the job is unlikely to need old plans
// again.
Status PlanStore::Clear() {
  used_ = 0;
  plans_.clear();
  return cuda::CudaStatus(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
}

Result<const StoredPlan*> PlanStore::Store(
    const std::string& key, const cuda::GpuPlan& gpu_plan, bool flagged,
    std::shared_ptr<const RelayPlan> relay, cudaStream_t stream) {
  const uint64_t sending = gpu_plan.sending.size();
  const uint64_t receiving = gpu_plan.receiving.size();
  if (sending + receiving > kSteps)
    return Error(Code::kResourceExhausted, "a collective has ",
                 sending + receiving, " steps, but at most ", kSteps,
                 " fit; communicate in several parts, or increase "
                 "JAX_CXL_SLOT_BYTES");
  if (used_ + sending + receiving > kSteps) CXL_RETURN_IF_ERROR(Clear());
  cuda::DeviceStep* source = source_.get() + used_;
  cuda::DeviceStep* steps = steps_.get() + used_;
  std::copy(gpu_plan.sending.begin(), gpu_plan.sending.end(), source);
  std::copy(gpu_plan.receiving.begin(), gpu_plan.receiving.end(),
            source + sending);
  if (!flagged)  // Flagged plans travel with each launch.
    CXL_RETURN_IF_ERROR(cuda::CudaStatus(
        cudaMemcpyAsync(steps, source,
                        (sending + receiving) * sizeof(cuda::DeviceStep),
                        cudaMemcpyHostToDevice, stream),
        "copying a gpu_plan to the device"));
  used_ += sending + receiving;
  StoredPlan stored;
  stored.sending = steps;
  stored.receiving = steps + sending;
  stored.host_sending = source;
  stored.host_receiving = source + sending;
  stored.num_sending = static_cast<uint32_t>(sending);
  stored.num_receiving = static_cast<uint32_t>(receiving);
  stored.rounds = gpu_plan.rounds;
  stored.bytes_published = gpu_plan.bytes_published;
  stored.bytes_retrieved = gpu_plan.bytes_retrieved;
  stored.flagged = flagged;
  stored.relay = std::move(relay);
  if (flagged) {
    stored.flagged_blocks = cuda::FlaggedBlocks(gpu_plan);
    stored.flagged_sources = cuda::flagged::SourcesOf(gpu_plan);
  }
  return &(plans_[key] = stored);
}

}  // namespace jax_cxl::comm
