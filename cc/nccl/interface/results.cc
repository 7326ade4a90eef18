#include "cc/nccl/interface/results.h"

#include <cstdio>
#include <mutex>
#include <string>

#include "cc/nccl/interface/settings.h"

namespace jax_cxl::nccl {
namespace {

struct LastText {
  std::mutex mutex;
  std::string text;
};

LastText& TheLastText() {
  static auto& last = *new LastText;
  return last;
}

}  // namespace

NcclResult ResultOf(const Status& status) {
  switch (status.code()) {
    case Code::kOk:
      return kSuccess;
    case Code::kInvalidArgument:
      return kInvalidArgument;
    case Code::kMismatch:
    case Code::kUnimplemented:
    case Code::kFailedPrecondition:
      return kInvalidUsage;
    case Code::kPeerLost:
    case Code::kDeadlineExceeded:
      return kRemoteError;
    case Code::kInternal:
      return kInternalError;
    default:
      return kSystemError;
  }
}

Status StatusOf(int result, const char* function) {
  if (result == kSuccess || result == kInProgress) return OkStatus();
  const Code code = result == kInvalidArgument ? Code::kInvalidArgument
                    : result == kInvalidUsage  ? Code::kFailedPrecondition
                    : result == kRemoteError   ? Code::kPeerLost
                    : result == kInternalError ? Code::kInternal
                                               : Code::kResourceExhausted;
  return Error(code, function, " of NCCL failed: ", ErrorString(result));
}

const char* ErrorString(int result) {
  switch (result) {
    case kSuccess:
      return "no error";
    case kUnhandledCudaError:
      return "unhandled cuda error (run with NCCL_DEBUG=INFO for details)";
    case kSystemError:
      return "unhandled system error (run with NCCL_DEBUG=INFO for details)";
    case kInternalError:
      return "internal error - please report this issue to the NCCL developers";
    case kInvalidArgument:
      return "invalid argument (run with NCCL_DEBUG=WARN for details)";
    case kInvalidUsage:
      return "invalid usage (run with NCCL_DEBUG=WARN for details)";
    case kRemoteError:
      return "remote process exited or there was a network error";
    case kInProgress:
      return "NCCL operation in progress";
    default:
      return "unknown result code";
  }
}

void NoteError(const Status& status) {
  LastText& last = TheLastText();
  std::lock_guard lock(last.mutex);
  last.text = status.message();
}

NcclResult Report(const Status& status) {
  if (status.ok()) return kSuccess;
  NoteError(status);
  if (TheSettings().warns)
    std::fprintf(stderr, "jax_cxl nccl: %s\n", status.message().c_str());
  return ResultOf(status);
}

const char* LastError() {
  thread_local std::string text;
  LastText& last = TheLastText();
  std::lock_guard lock(last.mutex);
  text = last.text;
  return text.c_str();
}

}  // namespace jax_cxl::nccl
