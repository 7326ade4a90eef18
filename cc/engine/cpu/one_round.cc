#include "cc/engine/cpu/one_round.h"

#include <algorithm>
#include <cstring>

#include "cc/engine/kernels/copy.h"
#include "cc/engine/kernels/kernels.h"

namespace jax_cxl::cpu {

using plan::Step;
using plan::StepKind;

bool IsOneRound(const plan::Plan& plan) {
  bool retrieved = false;
  for (const Step& step : plan.steps) {
    if (step.kind == StepKind::kPutOutput ||
        step.kind == StepKind::kReduceToSlot ||
        (step.kind == StepKind::kPut && retrieved))
      return false;
    retrieved |= step.kind == StepKind::kGet || step.kind == StepKind::kReduce;
  }
  return plan.rounds == 1;
}

uint64_t PayloadBytes(const plan::Plan& plan) {
  uint64_t end = 0;
  for (const Step& step : plan.steps)
    if (step.kind == StepKind::kPut) end = std::max(end, step.to + step.bytes);
  return end;
}

int MissingPayload(const plan::Plan& plan, int rank,
                   const std::vector<const std::byte*>& payloads) {
  for (const Step& step : plan.steps) {
    if (step.bytes == 0) continue;  // only waits
    if (step.kind == StepKind::kGet && payloads[step.peer] == nullptr)
      return step.peer;
    if (step.kind != StepKind::kReduce) continue;
    for (int r = step.first; r < step.last; ++r)
      if (r != rank && payloads[r] == nullptr) return r;
  }
  return -1;
}

void PutPayload(const plan::Plan& plan, const std::byte* input,
                std::byte* payload, Traffic* traffic, const TakenRows* rows) {
  for (const Step& step : plan.steps) {
    if (step.kind != StepKind::kPut) continue;
    TakenRows::ForEachPublished(
        rows, step, input + step.from,
        [&](uint64_t at, const std::byte* from, uint64_t bytes) {
          CopyBytes(payload + step.to + at, from, bytes);
          traffic->bytes_published += bytes;
        });
  }
}

Status RetrievePayloads(const plan::Plan& plan, DType dtype, ReduceOp reduce_op,
                        int rank, const std::vector<const std::byte*>& payloads,
                        const std::byte* input, std::byte* output,
                        std::vector<const std::byte*>* sources,
                        Traffic* traffic, TakenRows* rows) {
  // Copies the data of a step from `from` to the output: all of them, or the
  // taken rows only. Returns the bytes copied.
  const auto copy = [&](const Step& step, const std::byte* from) {
    uint64_t copied = 0;
    TakenRows::ForEachTaken(rows, step, output,
                            [&](uint64_t at, std::byte* to, uint64_t bytes) {
                              CopyBytes(to, from + at, bytes);
                              copied += bytes;
                            });
    return copied;
  };
  for (const Step& step : plan.steps) {
    if (rows != nullptr) CXL_RETURN_IF_ERROR(rows->ReadyFor(step));
    switch (step.kind) {
      case StepKind::kCopy:
        copy(step, input + step.from);
        break;
      case StepKind::kZero:
        std::memset(output + step.to, 0, step.bytes);
        break;
      case StepKind::kGet:
        traffic->bytes_retrieved += copy(step, payloads[step.peer] + step.from);
        break;
      case StepKind::kReduce:
        sources->clear();
        for (int r = step.first; r < step.last; ++r) {
          sources->push_back(r == rank ? input + step.input_from
                                       : payloads[r] + step.from);
          if (r != rank) traffic->bytes_retrieved += step.bytes;
        }
        Reduce(dtype, reduce_op, *sources, output + step.to,
               step.bytes / DTypeBytes(dtype));
        break;
      default:
        break;
    }
  }
  return OkStatus();
}

}  // namespace jax_cxl::cpu
