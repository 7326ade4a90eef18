#ifndef JAX_CXL_FFI_ERRORS_ERRORS_H_
#define JAX_CXL_FFI_ERRORS_ERRORS_H_

#include <string_view>

#include "cc/base/status.h"
#include "xla/ffi/api/ffi.h"

namespace jax_cxl::ffi {

// Converts a status to XLA's type of error or success. An error is also
// recorded in Failures.
xla::ffi::Error ToFfiError(const Status& status);

// Returns the error for a call whose buffers do not match its lowering. `what`
// is the name of the call.
Status NotLowered(std::string_view what);

}  // namespace jax_cxl::ffi

#endif  // JAX_CXL_FFI_ERRORS_ERRORS_H_
