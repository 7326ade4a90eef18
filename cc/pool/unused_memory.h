#ifndef JAX_CXL_POOL_UNUSED_MEMORY_H_
#define JAX_CXL_POOL_UNUSED_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "cc/base/status.h"
#include "cc/pool/mapping/map.h"
#include "cc/pool/open/file.h"

namespace jax_cxl::pool {

// Why a process is about to format memory. The creator of a pool holds an
// exclusive lock, so no other process on this kernel uses the memory. The
// creator of a store holds only a shared lock, because other processes may open
// the same store. The memory may already contain that store.
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
// A process counts as living if its heartbeat advances within `dead_after_s`.
// There are two exceptions. For kPool, processes on this kernel do not count if
// the file is locked. For kStore, the creator of a pool counts while it exists
// on this kernel, even if it is stopped. A store counts even if no process has
// it open.
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
