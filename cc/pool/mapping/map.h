#ifndef JAX_CXL_POOL_MAPPING_MAP_H_
#define JAX_CXL_POOL_MAPPING_MAP_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "cc/base/status.h"

namespace jax_cxl::pool {

// A piece of an open file that becomes the next part of a mapping.
struct MapPiece {
  int fd = -1;  // -1: private zeros, in place of memory that is not there
  uint64_t offset = 0;
  uint64_t bytes = 0;
  uint64_t align = 1;       // the alignment of addresses that the device needs
  uint64_t file_bytes = 0;  // size of the whole device; 0: a file

  bool is_device() const { return file_bytes != 0; }
};

// Maps the pieces, shared and writable, one after the other into one range of
// addresses. The caller unmaps the range as a whole.
Result<std::byte*> MapContiguous(const std::vector<MapPiece>& pieces);

// Makes every page of the range present and writable, and leaves its contents
// unchanged. Later no collective pays for a page fault. The space must be
// reserved.
Status Prefault(std::byte* begin, uint64_t bytes);

// The fallback of Prefault on kernels before 5.14. No other thread or process
// may use the range meanwhile.
void TouchPages(std::byte* begin, uint64_t bytes);

}  // namespace jax_cxl::pool

#endif  // JAX_CXL_POOL_MAPPING_MAP_H_
