#include "cc/base/status.h"

namespace jax_cxl {

std::string_view CodeName(Code code) {
  switch (code) {
    case Code::kOk:
      return "OK";
    case Code::kInvalidArgument:
      return "INVALID_ARGUMENT";
    case Code::kNotFound:
      return "NOT_FOUND";
    case Code::kAlreadyExists:
      return "ALREADY_EXISTS";
    case Code::kPermissionDenied:
      return "PERMISSION_DENIED";
    case Code::kResourceExhausted:
      return "RESOURCE_EXHAUSTED";
    case Code::kFailedPrecondition:
      return "FAILED_PRECONDITION";
    case Code::kDataLoss:
      return "DATA_LOSS";
    case Code::kPeerLost:
      return "PEER_LOST";
    case Code::kDeadlineExceeded:
      return "DEADLINE_EXCEEDED";
    case Code::kMismatch:
      return "MISMATCH";
    case Code::kUnimplemented:
      return "UNIMPLEMENTED";
    case Code::kInternal:
      return "INTERNAL";
  }
  return "UNKNOWN";
}

Code ErrorCode(uint32_t number) {
  const auto code = static_cast<Code>(number);
  const bool known = number <= static_cast<uint32_t>(Code::kInternal);
  return known && code != Code::kOk ? code : Code::kDataLoss;
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
