#include "cc/nccl/interface/results.h"

#include <array>
#include <cstdio>
#include <iterator>
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
  // Indexed by ncclResult_t.
  constexpr std::array<const char*, 8> kTexts = {
      "no error",
      "unhandled cuda error (run with NCCL_DEBUG=INFO for details)",
      "unhandled system error (run with NCCL_DEBUG=INFO for details)",
      "internal error - please report this issue to the NCCL developers",
      "invalid argument (run with NCCL_DEBUG=WARN for details)",
      "invalid usage (run with NCCL_DEBUG=WARN for details)",
      "remote process exited or there was a network error",
      "NCCL operation in progress"};
  return result >= 0 && result < std::ssize(kTexts) ? kTexts[result]
                                                    : "unknown result code";
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
