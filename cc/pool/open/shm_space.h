#ifndef JAX_CXL_POOL_OPEN_SHM_SPACE_H_
#define JAX_CXL_POOL_OPEN_SHM_SPACE_H_

#include <cstdint>

#include "cc/pool/open/unique_fd.h"

// The space in /dev/shm. Some pools take theirs later
// (PoolSpec::idle_arena_bytes), and it is promised to them until then.
namespace jax_cxl::pool {

// Returns how many bytes are free and not promised to pools. Returns UINT64_MAX
// if there is no limit. Does not know pools of processes in other pid
// namespaces, or of other users.
uint64_t UnpromisedShmBytes();

// Keeps other processes from making and reserving pools between a look at the
// space and the use of what was seen. Waits for a second at most: a process
// that was stopped must not stop others, so the lock is no guarantee.
class ShmSpaceLock {
 public:
  ShmSpaceLock();
  ~ShmSpaceLock();
  ShmSpaceLock(const ShmSpaceLock&) = delete;
  ShmSpaceLock& operator=(const ShmSpaceLock&) = delete;

 private:
  UniqueFd directory_;
};

}  // namespace jax_cxl::pool

#endif  // JAX_CXL_POOL_OPEN_SHM_SPACE_H_
