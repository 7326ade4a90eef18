#ifndef JAX_CXL_POOL_OPEN_SHM_NAME_H_
#define JAX_CXL_POOL_OPEN_SHM_NAME_H_

#include <string>
#include <string_view>

#include "cc/base/status.h"
#include "cc/pool/open/unique_fd.h"

namespace jax_cxl::pool {

inline constexpr std::string_view kShmDirectory = "/dev/shm";
inline constexpr std::string_view kShmPrefix = "jax_cxl.";

// Fails with kInvalidArgument unless the name consists of 1 to 64 characters
// that are letters, digits, '.', '_' or '-'.
Status CheckShmName(const std::string& name);

std::string ShmPath(const std::string& name);

// Reserves the name of a pool as long as the returned descriptor is open. The
// pool's file in /dev/shm cannot reserve the name, because the file loses its
// own name as soon as all ranks have opened it. So the descriptor is a socket
// in the abstract namespace. The kernel frees the socket when its process ends,
// however the process ends. If another process has reserved the name, fails
// with kAlreadyExists and names that process.
Result<UniqueFd> ClaimShmName(const std::string& name);

}  // namespace jax_cxl::pool

#endif  // JAX_CXL_POOL_OPEN_SHM_NAME_H_
