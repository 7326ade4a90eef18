#ifndef JAX_CXL_POOL_UNUSED_MEMORY_H_
#define JAX_CXL_POOL_UNUSED_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "cc/base/status.h"
#include "cc/pool/mapping/map.h"
#include "cc/pool/open/file.h"

namespace jax_cxl::pool {

// What the memory is for that a process is about to format. A pool has an
// exclusive lock on its memory meanwhile, so no other process of this kernel
// uses it. A store has a shared lock, because other processes may open the same
// store, and this store may be in its memory already.
enum class Purpose : uint8_t { kPool, kStore };

// The place of a header that a dead job has left in the memory of a new pool.
// CheckUnused does not return headers at the beginning of a part of this pool,
// because the new pool overwrites them.
struct OldHeader {
  size_t part;
  uint64_t offset;  // relative to the part
};

// Looks for other users of the memory that this process is about to format:
// `parts[i]` is the part of `files[i]`. In a file, a pool begins at the part's
// offset. On a device, pools of other jobs and stores may begin anywhere and
// overlap the part.
//
// The creator of a pool on this kernel counts as living if the kernel knows it.
// A process of another kernel counts as living if its heartbeat advances within
// `dead_after_s`. A store counts even if no process has it open.
//
// Returns the headers that dead jobs have left. Fails with kAlreadyExists if
// another job is alive, and names one of its processes. Fails with kDataLoss if
// there is a store, or something that might be a damaged one.
Result<std::vector<OldHeader>> CheckUnused(
    const std::vector<MapPiece>& parts,
    const std::vector<const PoolFile*>& files, Purpose purpose,
    double dead_after_s);

}  // namespace jax_cxl::pool

#endif  // JAX_CXL_POOL_UNUSED_MEMORY_H_
