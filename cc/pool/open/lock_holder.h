#ifndef JAX_CXL_POOL_OPEN_LOCK_HOLDER_H_
#define JAX_CXL_POOL_OPEN_LOCK_HOLDER_H_

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

namespace jax_cxl::pool {

// A lock that a process holds on a file (flock).
struct HeldLock {
  pid_t pid;
  dev_t device;
  ino_t inode;
};

// Returns the locks of all processes in this pid namespace.
std::vector<HeldLock> HeldLocks();

// Returns a text that names the process with a lock on an open file, if this
// kernel shows the process. Otherwise returns DescribeKeeper's text for the
// pool at `offset`.
std::string DescribeLockHolder(int fd, uint64_t offset);

// Returns a text that names the keeper of the pool at `offset` of an open file
// or device. The keeper is the process that created the pool, according to the
// pool's header page. Returns "another process" if the page names none. `align`
// is the alignment of a device, or 0 for a file.
std::string DescribeKeeper(int fd, uint64_t offset, uint64_t align);

}  // namespace jax_cxl::pool

#endif  // JAX_CXL_POOL_OPEN_LOCK_HOLDER_H_
