#ifndef JAX_CXL_POOL_OPEN_RESERVE_H_
#define JAX_CXL_POOL_OPEN_RESERVE_H_

#include <cstdint>
#include <string>

#include "cc/base/status.h"

namespace jax_cxl::pool {

// Allocates memory or disk blocks for bytes [offset, offset + bytes) of an open
// file, so that no access raises SIGBUS later. If that fails and `restore_size`
// is true, the file has its old size afterwards. In a file system that can
// neither allocate nor let files grow, such as famfs, the file must already
// have its full size.
Status ReserveSpace(int fd, const std::string& path, uint64_t offset,
                    uint64_t bytes, bool restore_size);

// Returns true if the file system can allocate space for holes of a file.
bool CanFillHoles(int fd);

}  // namespace jax_cxl::pool

#endif  // JAX_CXL_POOL_OPEN_RESERVE_H_
