#ifndef JAX_CXL_POOL_OPEN_LOCK_HOLDER_H_
#define JAX_CXL_POOL_OPEN_LOCK_HOLDER_H_

#include <cstdint>
#include <string>

namespace jax_cxl::pool {

// Returns a text that names the process with a lock on an open file, if the
// kernel knows it. Otherwise returns the text of DescribeKeeper.
std::string DescribeLockHolder(int fd, uint64_t offset);

// Returns a text that names the process that keeps the pool at `offset` of an
// open file or device, according to the pool's header page. Returns "another
// process" if the page names none. `align` is the alignment of a device, or 0
// for a file.
std::string DescribeKeeper(int fd, uint64_t offset, uint64_t align);

}  // namespace jax_cxl::pool

#endif  // JAX_CXL_POOL_OPEN_LOCK_HOLDER_H_
