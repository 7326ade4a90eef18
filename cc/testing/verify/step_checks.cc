#include "cc/testing/verify/step_checks.h"

namespace jax_cxl::plan {
namespace {

// Returns true if [at, at + bytes) lies within [0, size). The test cannot
// overflow, whatever the arguments.
bool Within(uint64_t at, uint64_t bytes, uint64_t size) {
  return bytes <= size && at <= size - bytes;
}

}  // namespace

Status CheckStep(const Request& request, const Geometry& geometry,
                 uint64_t rounds, int rank, const Step& step) {
  const uint64_t slot = geometry.slot_bytes;
  const uint64_t input = InputBytes(request) + request.rows.slice_bytes;
  // If the operation moves rows, the plan equals an all_gather's, so its
  // steps write the rows of all ranks. An executor copies only the rows that
  // its rank takes.
  const uint64_t output =
      MovesRows(request.op) ? input * request.num_ranks : OutputBytes(request);
  if (step.round >= rounds || step.to_round >= rounds) {
    return Error(Code::kInternal, "a round that the call does not have");
  }
  bool from_input = false, from_output = false, from_slot = false;
  bool to_output = false, to_slot = false, reduces = false;
  switch (step.kind) {
    case StepKind::kCopy:
      from_input = to_output = true;
      break;
    case StepKind::kZero:
      to_output = true;
      break;
    case StepKind::kPut:
      from_input = to_slot = true;
      break;
    case StepKind::kPutOutput:
      from_output = to_slot = true;
      break;
    case StepKind::kGet:
      if (step.peer < 0 || step.peer >= request.num_ranks ||
          step.peer == rank) {
        return Error(Code::kInternal, "rank ", step.peer, " is not a peer");
      }
      from_slot = to_output = true;
      break;
    case StepKind::kReduce:
      from_slot = to_output = reduces = true;
      break;
    case StepKind::kReduceToSlot:
      from_slot = to_slot = reduces = true;
      break;
    case StepKind::kPublish:
    case StepKind::kRelease:
      return OkStatus();
  }
  if (step.bytes == 0 && step.kind != StepKind::kGet) {
    return Error(Code::kInternal, "a step without bytes");
  }
  if (step.bytes % request.element_bytes != 0) {
    return Error(Code::kInternal, "cuts an element in two");
  }
  if ((from_input && !Within(step.from, step.bytes, input)) ||
      (from_output && !Within(step.from, step.bytes, output)) ||
      (from_slot && !Within(step.from, step.bytes, slot)) ||
      (to_output && !Within(step.to, step.bytes, output)) ||
      (to_slot && !Within(step.to, step.bytes, slot))) {
    return Error(Code::kInternal, "leaves the buffer");
  }
  if (from_slot && step.from % kSlotAlignment != 0) {
    return Error(Code::kInternal, "reads a slot off the boundary of ",
                 kSlotAlignment);
  }
  if (!reduces) return OkStatus();
  if (step.first < 0 || step.first >= step.last ||
      step.last > request.num_ranks) {
    return Error(Code::kInternal, "reduces over no range of ranks");
  }
  if (step.first <= rank && rank < step.last &&
      !Within(step.input_from, step.bytes, input)) {
    return Error(Code::kInternal, "leaves the buffer");
  }
  return OkStatus();
}

}  // namespace jax_cxl::plan
