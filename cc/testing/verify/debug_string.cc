#include "cc/testing/verify/debug_string.h"

#include <cstdint>
#include <iterator>
#include <sstream>
#include <string_view>

namespace jax_cxl::plan {

std::string_view StepKindName(StepKind kind) {
  constexpr std::string_view kNames[] = {
      "copy",   "zero",           "put",    "put_output", "publish", "get",
      "reduce", "reduce_to_slot", "release"};
  const auto index = static_cast<size_t>(kind);
  return index < std::size(kNames) ? kNames[index] : "unknown step";
}

std::string DebugString(const Step& step) {
  std::ostringstream text;
  text << StepKindName(step.kind);
  if (step.kind != StepKind::kCopy && step.kind != StepKind::kZero)
    text << " round " << step.round;
  auto range = [&](const char* what, uint64_t begin) {
    text << what << "[" << begin << ", " << begin + step.bytes << ")";
  };
  switch (step.kind) {
    case StepKind::kCopy:
      range(" input", step.from);
      range(" -> output", step.to);
      break;
    case StepKind::kZero:
      range(" output", step.to);
      break;
    case StepKind::kPut:
    case StepKind::kPutOutput:
      range(step.kind == StepKind::kPut ? " input" : " output", step.from);
      range(" -> slot", step.to);
      break;
    case StepKind::kPublish:
    case StepKind::kRelease:
      break;
    case StepKind::kGet:
      text << " rank " << step.peer;
      range(" slot", step.from);
      range(" -> output", step.to);
      break;
    case StepKind::kReduce:
    case StepKind::kReduceToSlot:
      text << " ranks [" << step.first << ", " << step.last << ")";
      range(" slot", step.from);
      range(" my input", step.input_from);
      if (step.kind == StepKind::kReduceToSlot)
        text << " -> round " << step.to_round;
      range(step.kind == StepKind::kReduce ? " -> output" : " slot", step.to);
      break;
  }
  return text.str();
}

std::string DebugString(const Plan& plan) {
  std::ostringstream text;
  text << plan.rounds << " rounds, " << plan.steps.size() << " steps\n";
  for (const Step& step : plan.steps) text << DebugString(step) << "\n";
  return text.str();
}

}  // namespace jax_cxl::plan
