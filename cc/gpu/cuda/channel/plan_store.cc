#include "cc/gpu/cuda/channel/plan_store.h"

#include <algorithm>
#include <utility>

#include "cc/base/cuda/cuda_status.h"
#include "cc/base/cuda/streams.h"
#include "cc/comm/call/call.h"
#include "cc/engine/cuda/flagged/flagged.h"
#include "cc/engine/gpu_plan/flagged_ring.h"

namespace jax_cxl::comm {
namespace {

constexpr uint64_t kAlignment =
    std::max(alignof(cuda::JournalEntry), alignof(cuda::DeviceStep));

}  // namespace

PlanStore::~PlanStore() {
  if (stream_ != nullptr) cudaStreamDestroy(stream_);
}

Status PlanStore::Add(uint64_t bytes) {
  if (stream_ == nullptr) CXL_RETURN_IF_ERROR(cuda::MakeStream(&stream_));
  void* memory = nullptr;
  CXL_RETURN_IF_ERROR(
      cuda::CudaStatus(cudaMalloc(&memory, bytes), "cudaMalloc"));
  next_ = chunks_.emplace_back(static_cast<std::byte*>(memory)).get();
  left_ = bytes;
  return OkStatus();
}

const StoredPlan* PlanStore::Find(const std::string& key) const {
  auto found = plans_.find(key);
  return found == plans_.end() ? nullptr : &found->second;
}

Result<std::byte*> PlanStore::Put(const void* data, uint64_t bytes) {
  const uint64_t taken = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  if (taken > left_) CXL_RETURN_IF_ERROR(Add(std::max(taken, kChunkBytes)));
  std::byte* const place = next_;
  next_ += taken;
  left_ -= taken;
  CXL_RETURN_IF_ERROR(cuda::CudaStatus(
      cudaMemcpyAsync(place, data, bytes, cudaMemcpyHostToDevice, stream_),
      "copying a plan to the device"));
  return place;
}

Result<const StoredPlan*> PlanStore::Store(
    const std::string& key, const cuda::GpuPlan& gpu_plan, bool flagged,
    std::shared_ptr<const RelayPlan> relay, const cuda::JournalEntry* record) {
  StoredPlan plan;
  plan.steps = gpu_plan.sending;
  plan.steps.insert(plan.steps.end(), gpu_plan.receiving.begin(),
                    gpu_plan.receiving.end());
  plan.num_sending = static_cast<uint32_t>(gpu_plan.sending.size());
  plan.num_receiving = static_cast<uint32_t>(gpu_plan.receiving.size());
  plan.host_sending = plan.steps.data();
  plan.host_receiving = plan.host_sending + plan.num_sending;
  plan.rounds = gpu_plan.rounds;
  plan.bytes_published = gpu_plan.bytes_published;
  plan.bytes_retrieved = gpu_plan.bytes_retrieved;
  plan.relay = std::move(relay);
  plan.flagged = flagged;
  if (flagged) {
    plan.flagged_blocks = cuda::FlaggedBlocks(gpu_plan);
    plan.flagged_sources = cuda::flagged::SourcesOf(gpu_plan);
  } else if (!plan.steps.empty()) {
    CXL_ASSIGN_OR_RETURN(
        std::byte* const place,
        Put(plan.steps.data(), plan.steps.size() * sizeof(cuda::DeviceStep)));
    plan.sending = reinterpret_cast<const cuda::DeviceStep*>(place);
    plan.receiving = plan.sending + plan.num_sending;
  }
  if (record != nullptr) {
    CXL_ASSIGN_OR_RETURN(std::byte* const place, Put(record, sizeof(*record)));
    plan.record = reinterpret_cast<const cuda::JournalEntry*>(place);
    plan.descriptor_hash = HashDescriptor(record->descriptor, 0);
  }
  CXL_RETURN_IF_ERROR(cuda::CudaStatus(cudaStreamSynchronize(stream_),
                                       "copying a plan to the device"));
  return &(plans_[key] = std::move(plan));
}

}  // namespace jax_cxl::comm
