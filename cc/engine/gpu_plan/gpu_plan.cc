#include "cc/engine/gpu_plan/gpu_plan.h"

#include <algorithm>
#include <ranges>
#include <utility>

namespace jax_cxl::cuda {
namespace {

using plan::Step;
using plan::StepKind;

// Splits the steps of a plan into two lists, one for each direction. Each list
// keeps the order of the plan.
class Splitter {
 public:
  Splitter(int rank, const Stripes& stripes)
      : rank_(rank), period_(stripes.period()) {}

  Status Add(const Step& step) {
    switch (step.kind) {
      case StepKind::kCopy:
        Send(DeviceStepKind::kCopy, step);
        break;
      case StepKind::kZero:
        Send(DeviceStepKind::kZero, step);
        break;
      case StepKind::kPut:
        Send(DeviceStepKind::kPut, step);
        gpu_plan.bytes_published += step.bytes;
        break;
      case StepKind::kPublish:
        Send(DeviceStepKind::kPublish, step).after =
            SlotWritesUntil(step.round);
        break;
      case StepKind::kPutOutput:
        return PutOutput(step);
      case StepKind::kGet: {
        DeviceStep& get = Receive(DeviceStepKind::kGet, step);
        get.first = step.peer;
        get.last = step.peer + 1;
        gpu_plan.bytes_retrieved += step.bytes;
        break;
      }
      case StepKind::kReduce:
        Receive(DeviceStepKind::kReduce, step);
        CountSources(step);
        break;
      case StepKind::kReduceToSlot:
        CountSources(step);
        return WriteSlot(step, step.to_round,
                         Receive(DeviceStepKind::kReduceToSlot, step));
      case StepKind::kRelease:
        Receive(DeviceStepKind::kRelease, step);
        break;
    }
    return OkStatus();
  }

  GpuPlan gpu_plan;  // of the steps so far

 private:
  static DeviceStep Make(DeviceStepKind kind, const Step& step) {
    return {.kind = kind,
            .first = step.first,
            .last = step.last,
            .round = step.round,
            .to_round = step.to_round,
            .from = step.from,
            .input_from = step.input_from,
            .to = step.to,
            .bytes = step.bytes};
  }

  DeviceStep& Send(DeviceStepKind kind, const Step& step) {
    return gpu_plan.sending.emplace_back(Make(kind, step));
  }

  DeviceStep& Receive(DeviceStepKind kind, const Step& step) {
    return gpu_plan.receiving.emplace_back(Make(kind, step));
  }

  // Handles `step`, which puts a result from the output into a slot, without a
  // step of its own. The step before it in the plan has reduced this result to
  // the output. That step is changed so that it writes the result to the output
  // and to the slot, while the result is in registers.
  Status PutOutput(const Step& step) {
    // Find the step that reduces. Releases may lie between it and `step`.
    auto steps = std::views::reverse(gpu_plan.receiving);
    const auto reduce = std::ranges::find_if(steps, [](const DeviceStep& last) {
      return last.kind != DeviceStepKind::kRelease;
    });
    if (reduce == steps.end() || reduce->kind != DeviceStepKind::kReduce ||
        reduce->to != step.from || reduce->bytes != step.bytes)
      return Error(Code::kUnimplemented,
                   "the CUDA engine can put an output into a slot only right "
                   "after its reduction; please report this to jax_cxl");
    reduce->kind = DeviceStepKind::kReduceToBoth;
    return WriteSlot(step, step.round, *reduce);
  }

  // Makes the receiving step `reduce` also write its result to this member's
  // slot of round `round`, at offset `step.to`. Fails if those bytes of the
  // slot belong to another block than the bytes that `reduce` reads.
  Status WriteSlot(const Step& step, uint64_t round, DeviceStep& reduce) {
    if (reduce.from % period_ != step.to % period_)
      return Error(
          Code::kUnimplemented, "a part of a slot starts at byte ", reduce.from,
          ", but its result starts at byte ", step.to,
          ", in the stripes of another block; please report this to jax_cxl");
    reduce.to_round = round;
    reduce.to_slot = step.to;
    const auto steps = &reduce - gpu_plan.receiving.data() + 1;
    slot_writes_.push_back({round, static_cast<uint32_t>(steps)});
    gpu_plan.bytes_published += step.bytes;
    return OkStatus();
  }

  void CountSources(const Step& step) {
    const bool mine = step.first <= rank_ && rank_ < step.last;
    gpu_plan.bytes_retrieved += step.bytes * (step.last - step.first - mine);
  }

  // Returns how many receiving steps must be done before this member's slots
  // hold all reduced results of the rounds up to `round`. The plan computes
  // results in the order of their rounds.
  uint32_t SlotWritesUntil(uint64_t round) const {
    for (const SlotWrite& write : std::views::reverse(slot_writes_))
      if (write.round <= round) return write.steps;
    return 0;
  }

  struct SlotWrite {
    uint64_t round;
    uint32_t steps;  // receiving steps, up to and including the write
  };

  int rank_;
  uint64_t period_;
  std::vector<SlotWrite> slot_writes_;
};

}  // namespace

Result<GpuPlan> MakeGpuPlan(const plan::Plan& plan, int rank,
                            const Stripes& stripes) {
  Splitter splitter(rank, stripes);
  for (const Step& step : plan.steps) CXL_RETURN_IF_ERROR(splitter.Add(step));
  splitter.gpu_plan.rounds = plan.rounds;
  return std::move(splitter.gpu_plan);
}

}  // namespace jax_cxl::cuda
