#ifndef JAX_CXL_FFI_ERRORS_ERRORS_H_
#define JAX_CXL_FFI_ERRORS_ERRORS_H_

#include <string_view>

#include "cc/base/status.h"
#include "xla/ffi/api/ffi.h"

namespace jax_cxl::ffi {

// Converts a status to XLA's error, or to XLA's success. Failures remembers an
// error.
xla::ffi::Error ToFfiError(const Status& status);

// Returns the error for buffers that do not match the lowering of `what`.
Status NotLowered(std::string_view what);

}  // namespace jax_cxl::ffi

#endif  // JAX_CXL_FFI_ERRORS_ERRORS_H_
