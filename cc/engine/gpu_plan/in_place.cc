#include "cc/engine/gpu_plan/in_place.h"

namespace jax_cxl::cuda {
namespace {

bool WritesOutput(const DeviceStep& step) {
  return step.kind == DeviceStepKind::kGet ||
         step.kind == DeviceStepKind::kReduce ||
         step.kind == DeviceStepKind::kReduceToBoth;
}

}  // namespace

Status OrderInPlace(int64_t shift, const Stripes& stripes, GpuPlan* gpu_plan) {
  const auto period = static_cast<int64_t>(stripes.period());
  for (DeviceStep& step : gpu_plan->receiving) {
    if (!WritesOutput(step) || step.bytes == 0) continue;
    const int64_t first = static_cast<int64_t>(step.to) + shift;
    const int64_t last = first + static_cast<int64_t>(step.bytes);
    for (uint32_t at = 0; at < gpu_plan->sending.size(); ++at) {
      const DeviceStep& put = gpu_plan->sending[at];
      const auto from = static_cast<int64_t>(put.from);
      if (put.kind != DeviceStepKind::kPut || from >= last ||
          from + static_cast<int64_t>(put.bytes) <= first)
        continue;
      const int64_t distance = static_cast<int64_t>(put.to) - from + shift -
                               static_cast<int64_t>(step.from) +
                               static_cast<int64_t>(step.to);
      // Steps of the same round, and of earlier rounds, never wait for this
      // one.
      if (put.round > step.round || distance % period != 0)
        return Error(Code::kUnimplemented,
                     "the buffers of this collective overlap in a way that "
                     "GPUs do not support: use separate buffers");
      step.after = at + 1;
    }
  }
  return OkStatus();
}

}  // namespace jax_cxl::cuda
