#include "cc/engine/gpu_plan/flagged_ring.h"

#include <algorithm>

namespace jax_cxl::cuda::flagged {

bool Fits(const GpuPlan& gpu_plan) {
  const auto to_slot = [](const DeviceStep& step) {
    return step.kind == DeviceStepKind::kReduceToSlot ||
           step.kind == DeviceStepKind::kReduceToBoth;
  };
  return gpu_plan.rounds == 1 &&
         gpu_plan.sending.size() + gpu_plan.receiving.size() <= kMaxSteps &&
         std::ranges::none_of(gpu_plan.receiving, to_slot);
}

}  // namespace jax_cxl::cuda::flagged
