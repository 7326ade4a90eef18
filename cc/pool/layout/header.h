#ifndef JAX_CXL_POOL_LAYOUT_HEADER_H_
#define JAX_CXL_POOL_LAYOUT_HEADER_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "cc/base/status.h"
#include "cc/pool/layout/geometry.h"
#include "cc/pool/layout/layout.h"

// What the first page of an extent says. All functions work on a private copy,
// which no other process can change between a check and its use.
namespace jax_cxl::pool {

uint64_t HeaderChecksum(const PoolHeader& header);

// The header of extent 0, complete with its checksum.
PoolHeader MakeHeader(int world_size, const std::vector<ByteRange>& extents,
                      uint64_t total_bytes, uint64_t epoch, uint64_t token);

// The same for another extent.
PoolHeader ForExtent(PoolHeader header, int extent_index);

// Whether magic, version, checksum and the ranges of all fields are right.
bool IsValid(const PoolHeader& header);

// The epoch of a valid header, else 0.
uint64_t EpochOf(const PoolHeader& header);
uint64_t NextEpoch(uint64_t previous);

// Whether a job has taken the extent and has not let go of it, for all that its
// keeper says.
bool IsClaimed(const PoolKeeper& keeper);

// Marks the memory as a pool to be: the first that its creator writes, so that
// whoever finds an unfinished pool knows it.
void BeginKeeper(PoolKeeper& keeper);

// Whether the creator of a pool took the extent, and ended before it wrote the
// header.
bool IsUnfinished(const HeaderPage& page);

// Decides from the first `bytes` of a file whether it may become a pool: it is
// empty, starts with zeros, was a pool of this layout, or was about to be one.
// Else kDataLoss.
Status CheckMayOverwrite(const std::byte* first_page, uint64_t bytes,
                         const std::string& path);

// kDataLoss unless `header`, read at `where`, is that of a pool of this layout.
Status CheckReadable(const PoolHeader& header, const std::string& where);

// kDataLoss unless `found`, read at `where`, is the header that `expected`
// describes. The epoch is not compared: only the creator knows it beforehand.
Status CheckHeader(const PoolHeader& found, const PoolHeader& expected,
                   const std::string& where);

}  // namespace jax_cxl::pool

#endif  // JAX_CXL_POOL_LAYOUT_HEADER_H_
