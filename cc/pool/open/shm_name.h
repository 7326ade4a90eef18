#ifndef JAX_CXL_POOL_OPEN_SHM_NAME_H_
#define JAX_CXL_POOL_OPEN_SHM_NAME_H_

#include <string>
#include <string_view>

#include "cc/base/status.h"
#include "cc/pool/open/unique_fd.h"

namespace jax_cxl::pool {

inline constexpr std::string_view kShmDirectory = "/dev/shm";
inline constexpr std::string_view kShmPrefix = "jax_cxl.";

// A name is 1 to 64 letters, digits, '.', '_' and '-'.
Status CheckShmName(const std::string& name);

std::string ShmPath(const std::string& name);

// Reserves the name while the descriptor is open. A file in /dev/shm cannot
// reserve it, because the file loses its name as soon as all ranks have opened
// it. A socket in the abstract namespace can, and the kernel frees the socket
// when its process ends, however it ends. If another process has reserved the
// name, fails with kAlreadyExists and names that process.
Result<UniqueFd> ClaimShmName(const std::string& name);

}  // namespace jax_cxl::pool

#endif  // JAX_CXL_POOL_OPEN_SHM_NAME_H_
