#ifndef JAX_CXL_POOL_OPEN_SHM_H_
#define JAX_CXL_POOL_OPEN_SHM_H_

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "cc/base/status.h"
#include "cc/pool/open/unique_fd.h"

// The names of pools in /dev/shm, and the space there. Some pools take their
// space later (PoolSpec::idle_arena_bytes), and it is promised to them until
// then.
namespace jax_cxl::pool {

inline constexpr std::string_view kShmDirectory = "/dev/shm";
inline constexpr std::string_view kShmPrefix = "jax_cxl.";

// Returns true for the names that pools in /dev/shm may have: kShmNames.
bool IsShmName(std::string_view name);
inline constexpr std::string_view kShmNames =
    "1 to 64 letters, digits, '.', '_' or '-'";
std::string ShmPath(const std::string& name);

// Reserves the name of a pool as long as the returned descriptor is open. The
// pool's file in /dev/shm cannot reserve the name, because the file loses its
// own name as soon as all ranks have opened it. So the descriptor is a socket
// in the abstract namespace. The kernel frees the socket when its process ends,
// however the process ends. If another process has reserved the name, fails
// with kAlreadyExists and names that process.
Result<UniqueFd> ClaimShmName(const std::string& name);

// A lock that a process holds on a file (flock).
struct HeldLock {
  pid_t pid;
  dev_t device;
  ino_t inode;
};

// Returns the locks of all processes in this pid namespace.
std::vector<HeldLock> HeldLocks();

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

#endif  // JAX_CXL_POOL_OPEN_SHM_H_
