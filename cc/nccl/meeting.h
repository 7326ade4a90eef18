#ifndef JAX_CXL_NCCL_MEETING_H_
#define JAX_CXL_NCCL_MEETING_H_

#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "cc/base/status.h"
#include "cc/nccl/communicator.h"
#include "cc/nccl/interface/settings.h"

namespace jax_cxl::nccl {

// Returns the blocks of all ranks, which wait for each other.
using Gather = std::function<Result<std::vector<std::byte>>(
    std::span<const std::byte> block)>;

// Makes this rank's communicator of the real library. The ranks agree on its id
// by `gather`. `why` is their reason to take that library, and `problem`
// whether the user has to know.
using MakeReal = std::function<Result<void*>(
    const Gather& gather, const std::string& why, bool problem)>;

// Opens the communicator in the pool in which its ranks meet. If all of them
// are on one host, or if one of them cannot use the pool, makes it become one
// of the real library instead. All ranks do the same.
Status MeetAndOpen(Communicator* communicator, const Settings& settings,
                   const MakeReal& make_real);

}  // namespace jax_cxl::nccl

#endif  // JAX_CXL_NCCL_MEETING_H_
