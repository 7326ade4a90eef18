#ifndef JAX_CXL_POOL_OPEN_LOCK_HOLDER_H_
#define JAX_CXL_POOL_OPEN_LOCK_HOLDER_H_

#include <sys/types.h>

#include <cstdint>
#include <string>

namespace jax_cxl::pool {

// Names the process that holds a lock on an open file, as far as the kernel
// tells; else as DescribeKeeper.
std::string DescribeLockHolder(int fd, dev_t device, ino_t inode,
                               uint64_t offset);

// Names the process that keeps the pool at `offset` of an open file or device,
// as its header page says; else "another process". `align` is that of a device,
// 0 for a file.
std::string DescribeKeeper(int fd, uint64_t offset, uint64_t align);

}  // namespace jax_cxl::pool

#endif  // JAX_CXL_POOL_OPEN_LOCK_HOLDER_H_
