#ifndef JAX_CXL_POOL_LAYOUT_HEADER_H_
#define JAX_CXL_POOL_LAYOUT_HEADER_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "cc/base/status.h"
#include "cc/pool/layout/geometry.h"
#include "cc/pool/layout/layout.h"

// Makes and checks the contents of the first page of an extent. All functions
// that check take a private copy, which no other process can change between the
// check and its use.
namespace jax_cxl::pool {

uint64_t HeaderChecksum(const PoolHeader& header);

Result<uint64_t> RandomToken();

// Returns the header of extent 0, complete with its checksum.
PoolHeader MakeHeader(int world_size, const std::vector<ByteRange>& extents,
                      uint64_t total_bytes, uint64_t epoch, uint64_t token);

// Returns a copy of the header for extent `extent_index`, with its checksum.
PoolHeader ForExtent(PoolHeader header, int extent_index);

// Returns true if the magic, the version and the checksum are right, and no
// field is out of range.
bool IsValid(const PoolHeader& header);

// Returns the epoch of the header, or 0 if the header is not valid.
uint64_t EpochOf(const PoolHeader& header);
uint64_t NextEpoch(uint64_t previous);

// Returns true if `keeper` shows that a job has taken the extent and has not
// released it.
bool IsClaimed(const PoolKeeper& keeper);

// Marks an extent as part of a pool that is not complete yet. A creator does
// this before anything else, so that other processes recognize the unfinished
// pool if the creator dies.
void BeginKeeper(PoolKeeper& keeper);

// Returns true if a creator took the extent, but has not written the header.
// For example, the creator may have died before it could do so.
bool IsUnfinished(const HeaderPage& page);

// Returns true if `first_page` begins a pool of this layout, complete or
// unfinished. Returns false if all of its `bytes` bytes are zeros, or if
// `bytes` is 0 (an empty file). Otherwise fails with kDataLoss, because the
// file at `path` holds something else and must not become a pool.
Result<bool> HoldsPool(const std::byte* first_page, uint64_t bytes,
                       const std::string& path);

// Fails with kDataLoss unless `header`, read from `where`, is a valid header of
// this layout version.
Status CheckReadable(const PoolHeader& header, const std::string& where);

// Fails with kDataLoss unless `found`, read from `where`, equals `expected`.
// The epochs may differ, because a process that attaches learns the epoch only
// from the header.
Status CheckHeader(const PoolHeader& found, const PoolHeader& expected,
                   const std::string& where);

}  // namespace jax_cxl::pool

#endif  // JAX_CXL_POOL_LAYOUT_HEADER_H_
