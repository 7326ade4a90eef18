#include "cc/engine/gpu_plan/gpu_plan.h"

#include <utility>

namespace jax_cxl::cuda {
namespace {

using plan::Step;
using plan::StepKind;

// Lists the steps of both directions, in the order of the plan.
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
        gpu_plan_.bytes_published += step.bytes;
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
        gpu_plan_.bytes_retrieved += step.bytes;
        break;
      }
      case StepKind::kReduce:
        Receive(DeviceStepKind::kReduce, step);
        CountSources(step);
        break;
      case StepKind::kReduceToSlot: {
        CXL_RETURN_IF_ERROR(SameStripes(step.from, step.to));
        DeviceStep& reduce = Receive(DeviceStepKind::kReduceToSlot, step);
        reduce.to_slot = step.to;
        slot_writes_.push_back({step.to_round, Received()});
        CountSources(step);
        gpu_plan_.bytes_published += step.bytes;
        break;
      }
      case StepKind::kRelease:
        Receive(DeviceStepKind::kRelease, step);
        break;
    }
    return OkStatus();
  }

  GpuPlan Finish(uint64_t rounds) && {
    gpu_plan_.rounds = rounds;
    return std::move(gpu_plan_);
  }

 private:
  static DeviceStep Make(DeviceStepKind kind, const Step& step) {
    DeviceStep made;
    made.kind = kind;
    made.first = step.first;
    made.last = step.last;
    made.round = step.round;
    made.to_round = step.to_round;
    made.from = step.from;
    made.input_from = step.input_from;
    made.to = step.to;
    made.bytes = step.bytes;
    return made;
  }

  DeviceStep& Send(DeviceStepKind kind, const Step& step) {
    return gpu_plan_.sending.emplace_back(Make(kind, step));
  }

  DeviceStep& Receive(DeviceStepKind kind, const Step& step) {
    return gpu_plan_.receiving.emplace_back(Make(kind, step));
  }

  uint32_t Received() const {
    return static_cast<uint32_t>(gpu_plan_.receiving.size());
  }

  // If a reduced result goes to the output and then to a slot, one step writes
  // both while the result is in registers.
  Status PutOutput(const Step& step) {
    DeviceStep* last =
        gpu_plan_.receiving.empty() ? nullptr : &gpu_plan_.receiving.back();
    // Releases between the two steps do not matter.
    for (size_t i = gpu_plan_.receiving.size(); i-- > 0;) {
      last = &gpu_plan_.receiving[i];
      if (last->kind != DeviceStepKind::kRelease) break;
    }
    if (last == nullptr || last->kind != DeviceStepKind::kReduce ||
        last->to != step.from || last->bytes != step.bytes)
      return Error(Code::kUnimplemented,
                   "the CUDA engine puts an output into a slot only where it "
                   "was just reduced; please report this to jax_cxl: ",
                   plan::DebugString(step));
    CXL_RETURN_IF_ERROR(SameStripes(last->from, step.to));
    last->kind = DeviceStepKind::kReduceToBoth;
    last->to_round = step.round;
    last->to_slot = step.to;
    slot_writes_.push_back(
        {step.round,
         static_cast<uint32_t>(last - gpu_plan_.receiving.data()) + 1});
    gpu_plan_.bytes_published += step.bytes;
    return OkStatus();
  }

  void CountSources(const Step& step) {
    const bool mine = step.first <= rank_ && rank_ < step.last;
    gpu_plan_.bytes_retrieved += step.bytes * (step.last - step.first - mine);
  }

  // Returns how many receiving steps must be done before all results of rounds
  // up to `round` are in this member's slots. Results are computed in the order
  // of rounds.
  uint32_t SlotWritesUntil(uint64_t round) const {
    for (size_t i = slot_writes_.size(); i-- > 0;)
      if (slot_writes_[i].round <= round) return slot_writes_[i].steps;
    return 0;
  }

  Status SameStripes(uint64_t a, uint64_t b) const {
    if (a % period_ == b % period_) return OkStatus();
    return Error(
        Code::kUnimplemented, "a part of a slot starts at byte ", a,
        ", but its result at byte ", b,
        ", in the stripes of another block; please report this to jax_cxl");
  }

  struct SlotWrite {
    uint64_t round;
    uint32_t steps;  // receiving steps, up to and including the write
  };

  int rank_;
  uint64_t period_;
  GpuPlan gpu_plan_;
  std::vector<SlotWrite> slot_writes_;
};

}  // namespace

Result<GpuPlan> MakeGpuPlan(const plan::Plan& plan, int rank,
                            const Stripes& stripes) {
  Splitter splitter(rank, stripes);
  for (const Step& step : plan.steps) CXL_RETURN_IF_ERROR(splitter.Add(step));
  return std::move(splitter).Finish(plan.rounds);
}

}  // namespace jax_cxl::cuda
