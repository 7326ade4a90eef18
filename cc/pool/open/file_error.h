#ifndef JAX_CXL_POOL_OPEN_FILE_ERROR_H_
#define JAX_CXL_POOL_OPEN_FILE_ERROR_H_

#include <string>

#include "cc/base/status.h"

namespace jax_cxl::pool {

// Returns an error for `error`, an errno value. `error` determines the code and
// the text, which also names the action that failed and the path.
Status FileError(int error, const std::string& action, const std::string& path);

// Returns true if `error` is an errno value by which a file system reports that
// it lacks an operation.
bool IsRefusal(int error);

}  // namespace jax_cxl::pool

#endif  // JAX_CXL_POOL_OPEN_FILE_ERROR_H_
