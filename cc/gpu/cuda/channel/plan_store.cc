#include "cc/gpu/cuda/channel/plan_store.h"

#include <algorithm>
#include <utility>

#include "cc/base/cuda/cuda_status.h"
#include "cc/comm/call/call.h"

namespace jax_cxl::comm {
namespace {

constexpr uint64_t kAlignment =
    std::max(alignof(cuda::JournalEntry), alignof(cuda::DeviceStep));

}  // namespace

Status PlanStore::Add(uint64_t bytes) {
  if (stream_ == nullptr) {
    CXL_ASSIGN_OR_RETURN(stream_, cuda::MakeStream());
  }
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

template <typename T>
Result<const T*> PlanStore::Put(std::span<const T> data) {
  if (data.empty()) return Result<const T*>(nullptr);
  const uint64_t bytes = data.size_bytes();
  const uint64_t taken = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  if (taken > left_) CXL_RETURN_IF_ERROR(Add(std::max(taken, kChunkBytes)));
  std::byte* const place = next_;
  next_ += taken;
  left_ -= taken;
  CXL_RETURN_IF_ERROR(
      cuda::CudaStatus(cudaMemcpyAsync(place, data.data(), bytes,
                                       cudaMemcpyHostToDevice, stream_.get()),
                       "copying a plan to the device"));
  return reinterpret_cast<const T*>(place);
}

Result<const StoredPlan*> PlanStore::Store(
    const std::string& key, cuda::GpuPlan gpu_plan, bool flagged,
    std::shared_ptr<const RelayPlan> relay, const cuda::JournalEntry* record) {
  StoredPlan plan;
  if (!flagged) {
    CXL_ASSIGN_OR_RETURN(plan.sending,
                         Put(std::span(std::as_const(gpu_plan.sending))));
    CXL_ASSIGN_OR_RETURN(plan.receiving,
                         Put(std::span(std::as_const(gpu_plan.receiving))));
  }
  if (record != nullptr) {
    CXL_ASSIGN_OR_RETURN(plan.record, Put(std::span(record, 1)));
    plan.descriptor_hash = HashDescriptor(record->descriptor, 0);
  }
  CXL_RETURN_IF_ERROR(cuda::CudaStatus(cudaStreamSynchronize(stream_.get()),
                                       "copying a plan to the device"));
  plan.gpu_plan = std::move(gpu_plan);
  plan.flagged = flagged;
  plan.relay = std::move(relay);
  return &(plans_[key] = std::move(plan));
}

}  // namespace jax_cxl::comm
