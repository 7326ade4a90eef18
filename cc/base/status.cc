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

}  // namespace jax_cxl
