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

// Takes the name for as long as the descriptor is open. A file in /dev/shm
// cannot do that: it loses its name as soon as all ranks have it open. A socket
// in the abstract namespace can, and the kernel frees it when its process ends,
// however that happens. Error: kAlreadyExists, naming the process.
Result<UniqueFd> ClaimShmName(const std::string& name);

}  // namespace jax_cxl::pool

#endif  // JAX_CXL_POOL_OPEN_SHM_NAME_H_
