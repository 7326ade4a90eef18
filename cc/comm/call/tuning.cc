#include "cc/comm/call/tuning.h"

namespace jax_cxl::comm {

Status CheckTuning(const Tuning& tuning) {
  for (const TuningField& field : kTuningFields) {
    const uint64_t value = tuning.*field.member;
    if (value < field.least || value > field.most || value % field.unit != 0)
      return Error(Code::kInvalidArgument, field.name, " is ", value,
                   ", but must be a multiple of ", field.unit, " from ",
                   field.least, " to ", field.most);
  }
  return OkStatus();
}

}  // namespace jax_cxl::comm
