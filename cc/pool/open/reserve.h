#ifndef JAX_CXL_POOL_OPEN_RESERVE_H_
#define JAX_CXL_POOL_OPEN_RESERVE_H_

#include <cstdint>
#include <string>

#include "cc/base/status.h"

namespace jax_cxl::pool {

// Gives bytes [offset, offset + bytes) of an open file memory or disk blocks,
// so that no access raises SIGBUS later. If that fails and `restore_size` is
// true, the file has its old size afterwards. Some file systems cannot allocate
// or truncate (famfs): there the file must already have its full size.
Status ReserveSpace(int fd, const std::string& path, uint64_t offset,
                    uint64_t bytes, bool restore_size);

}  // namespace jax_cxl::pool

#endif  // JAX_CXL_POOL_OPEN_RESERVE_H_
