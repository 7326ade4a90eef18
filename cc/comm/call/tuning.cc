#include "cc/comm/call/tuning.h"

#include <algorithm>
#include <iomanip>
#include <sstream>
#include <string>
#include <string_view>

namespace jax_cxl::comm {

Status CheckTuning(const Tuning& tuning) {
  for (const TuningField& field : kTuningFields) {
    const uint64_t value = tuning.*field.member;
    if (value >= field.least && value <= field.most && value % field.unit == 0)
      continue;
    const std::string kind =
        field.unit == 1 ? "a number"
                        : "a multiple of " + std::to_string(field.unit);
    return Error(Code::kInvalidArgument, field.name, " is ",
                 static_cast<int64_t>(value), ", but must be ", kind, " from ",
                 field.least, " to ", field.most);
  }
  return OkStatus();
}

Result<Tuning> ParseTuning(const std::string& text) {
  const std::string_view key = "\"tuning\"";
  const size_t at = text.find(key);
  std::istringstream in(at == text.npos ? "" : text.substr(at + key.size()));
  Tuning tuning;
  char colon = 0, mark = 0;
  in >> colon >> mark >> std::ws;
  bool right = colon == ':' && mark == '{';
  if (right && in.peek() == '}') return tuning;
  while (right && mark != '}') {
    std::string name;
    int64_t value = 0;
    in >> std::quoted(name) >> colon >> value >> mark;
    const auto* const field =
        std::ranges::find(kTuningFields, name, &TuningField::name);
    right = in && colon == ':' && (mark == ',' || mark == '}');
    if (right && field == kTuningFields.end())
      return Error(
          Code::kInvalidArgument,
          "another version of jax_cxl wrote this tuning table, because "
          "this version has no '",
          name,
          "'; unset JAX_CXL_TUNING and run `python -m jax_cxl tune` "
          "(or `nccl tune`) again");
    if (right) tuning.*field->member = static_cast<uint64_t>(value);
  }
  if (!right)
    return Error(Code::kInvalidArgument,
                 "not a tuning table, which `python -m jax_cxl tune` and `nccl "
                 "tune` write");
  CXL_RETURN_IF_ERROR(CheckTuning(tuning));
  return tuning;
}

}  // namespace jax_cxl::comm
