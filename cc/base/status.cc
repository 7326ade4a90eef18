#include "cc/base/status.h"

#include <iterator>

namespace jax_cxl {
namespace {

// The names of the codes, in the order of `Code`.
constexpr std::string_view kCodeNames[] = {
    "OK",
    "INVALID_ARGUMENT",
    "NOT_FOUND",
    "ALREADY_EXISTS",
    "PERMISSION_DENIED",
    "RESOURCE_EXHAUSTED",
    "FAILED_PRECONDITION",
    "DATA_LOSS",
    "PEER_LOST",
    "DEADLINE_EXCEEDED",
    "MISMATCH",
    "UNIMPLEMENTED",
    "INTERNAL",
};
constexpr uint32_t kNumCodes = std::size(kCodeNames);
static_assert(static_cast<uint32_t>(Code::kInternal) == kNumCodes - 1);

}  // namespace

std::string_view CodeName(Code code) {
  const auto number = static_cast<uint32_t>(code);
  return number < kNumCodes ? kCodeNames[number] : "UNKNOWN";
}

Code ErrorCode(uint32_t number) {
  return number > 0 && number < kNumCodes ? static_cast<Code>(number)
                                          : Code::kDataLoss;
}

const Details& Status::details() const {
  static const auto& none = *new Details;
  return details_ == nullptr ? none : *details_;
}

void Status::AddDetail(std::string_view name, std::string value) {
  Details all = details();
  for (const auto& [known, earlier] : all)
    if (known == name) return;
  all.emplace_back(name, std::move(value));
  details_ = std::make_shared<const Details>(std::move(all));
}

Status Status::With(const Details& other) && {
  for (const auto& [name, value] : other) AddDetail(name, value);
  return std::move(*this);
}

}  // namespace jax_cxl
