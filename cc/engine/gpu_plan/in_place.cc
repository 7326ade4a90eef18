#include "cc/engine/gpu_plan/in_place.h"

#include <algorithm>
#include <vector>

#include "cc/engine/gpu_plan/flagged_ring.h"

namespace jax_cxl::cuda {
namespace {

bool WritesOutput(const DeviceStep& step) {
  return step.kind == DeviceStepKind::kGet ||
         step.kind == DeviceStepKind::kReduce ||
         step.kind == DeviceStepKind::kReduceToBoth;
}

// Bytes that a step of a short message reads or writes, as offsets in the
// input. The units of all steps of one kind are counted together, and thread t
// of T threads moves the units t, t + T, t + 2 T, ...
struct Part {
  int64_t first;
  int64_t last;
  int64_t unit_0;  // where unit 0 would be, if all units lay in a row
  int turn;        // of the kind: a thread moves one kind after another
};

// Compares a part that one step reads with a part that another step writes.
// Returns true if each thread overwrites only bytes that it has already read
// itself. No byte is then overwritten before it is read.
bool Precedes(const Part& read, const Part& written) {
  if (read.last <= written.first || written.last <= read.first) return true;
  return read.turn <= written.turn && read.unit_0 == written.unit_0;
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
      // A put of the same round as this step, or of an earlier round, never
      // waits for this step. So this step can wait for the put.
      if (put.round > step.round || distance % period != 0)
        return Error(Code::kUnimplemented,
                     "the buffers of this collective overlap in a way that "
                     "GPUs do not support: use separate buffers");
      step.after = at + 1;
    }
  }
  return OkStatus();
}

bool ShortIsRightInPlace(int64_t shift, const GpuPlan& gpu_plan) {
  std::vector<Part> all_read, all_written;
  int turn = 0;
  // Adds the parts that the steps of `kind` read and write.
  const auto add = [&](const std::vector<DeviceStep>& steps,
                       DeviceStepKind kind) {
    int64_t units = 0;  // bytes of the earlier steps' units
    for (const DeviceStep& step : steps) {
      if (step.kind != kind) continue;
      const auto bytes = static_cast<int64_t>(step.bytes);
      const auto part = [&](int64_t first) {
        return Part{first, first + bytes, first - units, turn};
      };
      const auto from = static_cast<int64_t>(
          kind == DeviceStepKind::kReduce ? step.input_from : step.from);
      const int64_t to = static_cast<int64_t>(step.to) + shift;
      const bool stays = kind == DeviceStepKind::kCopy && from == to;
      if (kind != DeviceStepKind::kGet && kind != DeviceStepKind::kZero &&
          !stays)
        all_read.push_back(part(from));
      if (kind != DeviceStepKind::kPut && !stays)
        all_written.push_back(part(to));
      units += static_cast<int64_t>(flagged::NumUnits(step.bytes) *
                                    flagged::kUnitBytes);
    }
    ++turn;
  };
  add(gpu_plan.sending, DeviceStepKind::kPut);
  add(gpu_plan.sending, DeviceStepKind::kCopy);
  add(gpu_plan.sending, DeviceStepKind::kZero);
  add(gpu_plan.receiving, DeviceStepKind::kGet);
  add(gpu_plan.receiving, DeviceStepKind::kReduce);
  return std::ranges::all_of(all_written, [&](const Part& written) {
    return std::ranges::all_of(
        all_read, [&](const Part& read) { return Precedes(read, written); });
  });
}

}  // namespace jax_cxl::cuda
