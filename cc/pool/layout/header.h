#ifndef JAX_CXL_POOL_LAYOUT_HEADER_H_
#define JAX_CXL_POOL_LAYOUT_HEADER_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "cc/base/status.h"
#include "cc/pool/layout/geometry.h"
#include "cc/pool/layout/layout.h"

// The contents of the first page of an extent. All functions take a private
// copy, which no other process can change between a check and its use.
namespace jax_cxl::pool {

uint64_t HeaderChecksum(const PoolHeader& header);

// Returns a random number that is not 0.
Result<uint64_t> RandomToken();

// Returns the header of extent 0, complete with its checksum.
PoolHeader MakeHeader(int world_size, const std::vector<ByteRange>& extents,
                      uint64_t total_bytes, uint64_t epoch, uint64_t token);

// Returns the same header for another extent.
PoolHeader ForExtent(PoolHeader header, int extent_index);

// Returns true if magic, version, checksum and the ranges of all fields are
// right.
bool IsValid(const PoolHeader& header);

// Returns the epoch of a valid header, else 0.
uint64_t EpochOf(const PoolHeader& header);
uint64_t NextEpoch(uint64_t previous);

// Returns true if, according to its keeper, a job has taken the extent and has
// not released it.
bool IsClaimed(const PoolKeeper& keeper);

// Marks the memory as a pool that is not complete yet. A creator does this
// first, so that others recognize an unfinished pool.
void BeginKeeper(PoolKeeper& keeper);

// Returns true if a creator took the extent and ended before it wrote the
// header.
bool IsUnfinished(const HeaderPage& page);

// Returns true if a file begins with a pool of this layout, complete or
// unfinished, and false if it is empty or its first `bytes` are zeros. Fails
// with kDataLoss if the file contains anything else, because it must not become
// a pool.
Result<bool> HoldsPool(const std::byte* first_page, uint64_t bytes,
                       const std::string& path);

// Fails with kDataLoss unless `header`, read from `where`, is a header of this
// layout.
Status CheckReadable(const PoolHeader& header, const std::string& where);

// Fails with kDataLoss unless `found`, read from `where`, equals `expected`.
// The epochs may differ: only the creator knows the epoch beforehand.
Status CheckHeader(const PoolHeader& found, const PoolHeader& expected,
                   const std::string& where);

}  // namespace jax_cxl::pool

#endif  // JAX_CXL_POOL_LAYOUT_HEADER_H_
