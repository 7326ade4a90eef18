#ifndef JAX_CXL_FFI_ERRORS_H_
#define JAX_CXL_FFI_ERRORS_H_

#include "cc/base/status.h"
#include "xla/ffi/api/ffi.h"

namespace jax_cxl::ffi {

// XLA's error for ours, which Failures remembers.
xla::ffi::Error ToFfiError(const Status& status);

}  // namespace jax_cxl::ffi

#endif  // JAX_CXL_FFI_ERRORS_H_
