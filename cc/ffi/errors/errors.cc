#include "cc/ffi/errors/errors.h"

#include <ranges>
#include <string>

namespace jax_cxl::ffi {
namespace {

namespace xffi = xla::ffi;

// Returns a code that JAX turns into a JaxRuntimeError. JAX turns some other
// codes into other exceptions: INVALID_ARGUMENT into ValueError, UNIMPLEMENTED
// into NotImplementedError. jax_cxl/_job/ending/program_errors.py later
// converts the JaxRuntimeError to the class that its text names.
xffi::ErrorCode FfiCode(Code code) {
  switch (code) {
    case Code::kPeerLost:
      return xffi::ErrorCode::kUnavailable;
    case Code::kDeadlineExceeded:
      return xffi::ErrorCode::kDeadlineExceeded;
    case Code::kMismatch:
      return xffi::ErrorCode::kAborted;
    default:
      return xffi::ErrorCode::kInternal;
  }
}

std::string Text(const Status& status) {
  return "jax_cxl: " + std::string(CodeName(status.code())) + ": " +
         status.message();
}

// Never destroyed, because handlers in XLA's threads may still fail while the
// process exits.
Failures*& Instance() {
  static Failures* current = new Failures;
  return current;
}

}  // namespace

xffi::Error ToFfiError(const Status& status) {
  if (status.ok()) return xffi::Error::Success();
  return xffi::Error(FfiCode(status.code()), Failures::Get().Record(status));
}

Status NotLowered(std::string_view what) {
  return Error(Code::kInternal,
               "XLA passed buffers that do not match the lowering of ", what,
               "; please report this, with the versions of jax and jaxlib");
}

Failures& Failures::Get() { return *Instance(); }

void Failures::Use(Failures* failures) { Instance() = failures; }

std::string Failures::Record(const Status& status) {
  std::string text = Text(status);
  std::lock_guard lock(mutex_);
  // When a job fails, all calls under way return the same error. Remember it
  // only once.
  if (!recent_.empty() && Text(recent_.back()) == text) return text;
  recent_.push_back(status);
  if (recent_.size() > kRemembered) recent_.pop_front();
  return text;
}

std::optional<Status> Failures::Find(std::string_view text) const {
  std::lock_guard lock(mutex_);
  for (const Status& status : recent_ | std::views::reverse)
    if (text.find(Text(status)) != std::string_view::npos) return status;
  return std::nullopt;
}

}  // namespace jax_cxl::ffi
