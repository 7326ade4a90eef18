#ifndef JAX_CXL_POOL_OPEN_FILE_ERROR_H_
#define JAX_CXL_POOL_OPEN_FILE_ERROR_H_

#include <string>

#include "cc/base/status.h"

namespace jax_cxl::pool {

// Makes an error from `error`, an errno value, which determines its code and
// text.
Status FileError(int error, const std::string& action, const std::string& path);

// Returns true for the errors of file systems that lack an operation.
bool IsRefusal(int error);

}  // namespace jax_cxl::pool

#endif  // JAX_CXL_POOL_OPEN_FILE_ERROR_H_
