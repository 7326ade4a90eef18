#include "cc/gpu/cuda/channel/counted_plans.h"

#include <algorithm>
#include <utility>

#include "cc/base/cuda/cuda_status.h"
#include "cc/comm/call/call.h"
#include "cc/engine/cuda/flagged/flagged.h"
#include "cc/engine/gpu_plan/flagged_ring.h"

namespace jax_cxl::comm {
namespace {

constexpr uint64_t kChunkBytes = uint64_t{1} << 20;
constexpr uint64_t kEntryAlignment = alignof(cuda::JournalEntry);

}  // namespace

CountedPlans::~CountedPlans() {
  if (stream_ != nullptr) cudaStreamDestroy(stream_);
}

Status CountedPlans::Open() {
  return cuda::CudaStatus(
      cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking),
      "cudaStreamCreate");
}

const CountedPlan* CountedPlans::Find(const std::string& key) const {
  auto found = plans_.find(key);
  return found == plans_.end() ? nullptr : found->second.get();
}

Result<std::byte*> CountedPlans::Allocate(uint64_t bytes) {
  bytes = (bytes + kEntryAlignment - 1) / kEntryAlignment * kEntryAlignment;
  if (used_ + bytes > chunk_bytes_) {
    const uint64_t size = std::max(bytes, kChunkBytes);
    void* memory = nullptr;
    CXL_RETURN_IF_ERROR(
        cuda::CudaStatus(cudaMalloc(&memory, size), "cudaMalloc"));
    chunks_.emplace_back(static_cast<std::byte*>(memory));
    chunk_bytes_ = size;
    used_ = 0;
  }
  std::byte* place = chunks_.back().get() + used_;
  used_ += bytes;
  return place;
}

Result<const CountedPlan*> CountedPlans::Store(
    const std::string& key, const cuda::GpuPlan& gpu_plan, bool flagged,
    const cuda::JournalEntry& record) {
  auto stored = std::make_unique<CountedPlan>();
  stored->steps = gpu_plan.sending;
  stored->steps.insert(stored->steps.end(), gpu_plan.receiving.begin(),
                       gpu_plan.receiving.end());
  const uint64_t steps_bytes =
      flagged ? 0 : stored->steps.size() * sizeof(cuda::DeviceStep);
  CXL_ASSIGN_OR_RETURN(std::byte* const place,
                       Allocate(sizeof(record) + steps_bytes));
  std::byte* const steps = place + sizeof(record);
  cudaError_t error = cudaMemcpyAsync(place, &record, sizeof(record),
                                      cudaMemcpyHostToDevice, stream_);
  if (error == cudaSuccess && steps_bytes > 0)
    error = cudaMemcpyAsync(steps, stored->steps.data(), steps_bytes,
                            cudaMemcpyHostToDevice, stream_);
  if (error == cudaSuccess) error = cudaStreamSynchronize(stream_);
  CXL_RETURN_IF_ERROR(cuda::CudaStatus(error, "copying a plan to the device"));

  StoredPlan& plan = stored->plan;
  plan.num_sending = static_cast<uint32_t>(gpu_plan.sending.size());
  plan.num_receiving = static_cast<uint32_t>(gpu_plan.receiving.size());
  plan.host_sending = stored->steps.data();
  plan.host_receiving = plan.host_sending + plan.num_sending;
  plan.sending = reinterpret_cast<const cuda::DeviceStep*>(steps);
  plan.receiving = plan.sending + plan.num_sending;
  plan.rounds = gpu_plan.rounds;
  plan.bytes_published = gpu_plan.bytes_published;
  plan.bytes_retrieved = gpu_plan.bytes_retrieved;
  plan.flagged = flagged;
  if (flagged) {
    plan.flagged_blocks = cuda::FlaggedBlocks(gpu_plan);
    plan.flagged_sources = cuda::flagged::SourcesOf(gpu_plan);
  }
  stored->record = reinterpret_cast<const cuda::JournalEntry*>(place);
  stored->descriptor_hash = HashDescriptor(record.descriptor, 0);
  return (plans_[key] = std::move(stored)).get();
}

}  // namespace jax_cxl::comm
