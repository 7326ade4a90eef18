#include "cc/comm/call/tuning.h"

#include <string>

namespace jax_cxl::comm {

Status CheckTuning(const Tuning& tuning) {
  for (const TuningField& field : kTuningFields) {
    const uint64_t value = tuning.*field.member;
    if (value >= field.least && value <= field.most && value % field.unit == 0)
      continue;
    const std::string kind =
        field.unit == 1 ? "a number"
                        : "a multiple of " + std::to_string(field.unit);
    return Error(Code::kInvalidArgument, field.name, " is ", value,
                 ", but must be ", kind, " from ", field.least, " to ",
                 field.most);
  }
  return OkStatus();
}

}  // namespace jax_cxl::comm
