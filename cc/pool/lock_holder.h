#ifndef JAX_CXL_POOL_LOCK_HOLDER_H_
#define JAX_CXL_POOL_LOCK_HOLDER_H_

#include <sys/types.h>

#include <string>

namespace jax_cxl::pool {

// Names the process that holds a lock on an open file, as far as the kernel
// tells: "process 12 (python3)", else "another process".
std::string DescribeLockHolder(int fd, dev_t device, ino_t inode);

}  // namespace jax_cxl::pool

#endif  // JAX_CXL_POOL_LOCK_HOLDER_H_
