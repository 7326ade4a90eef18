#ifndef JAX_CXL_POOL_OPEN_LOCK_HOLDER_H_
#define JAX_CXL_POOL_OPEN_LOCK_HOLDER_H_

#include <sys/types.h>

#include <cstdint>
#include <string>

namespace jax_cxl::pool {

// Names the process that holds a lock on an open file, as far as the kernel
// tells; else what the pool at `offset` says, else "another process".
std::string DescribeLockHolder(int fd, dev_t device, ino_t inode,
                               uint64_t offset);

}  // namespace jax_cxl::pool

#endif  // JAX_CXL_POOL_OPEN_LOCK_HOLDER_H_
