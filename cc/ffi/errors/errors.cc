#include "cc/ffi/errors/errors.h"

#include "cc/ffi/errors/failures.h"

namespace jax_cxl::ffi {
namespace {

namespace xffi = xla::ffi;

// JAX turns every other code into an exception other than JaxRuntimeError
// (INVALID_ARGUMENT into ValueError, UNIMPLEMENTED into NotImplementedError).
// jax_cxl/_job/ending/program_errors.py converts the exception to the class
// that the text names.
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

}  // namespace

xffi::Error ToFfiError(const Status& status) {
  if (status.ok()) return xffi::Error::Success();
  return xffi::Error(FfiCode(status.code()), Failures::Get().Record(status));
}

}  // namespace jax_cxl::ffi
