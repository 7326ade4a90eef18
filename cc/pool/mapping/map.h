#ifndef JAX_CXL_POOL_MAPPING_MAP_H_
#define JAX_CXL_POOL_MAPPING_MAP_H_

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "cc/base/status.h"

namespace jax_cxl::pool {

// A piece of an open file. MapContiguous maps several pieces, one after
// another.
struct MapPiece {
  int fd = -1;  // -1: private zeros, in place of memory that is not there
  uint64_t offset = 0;
  uint64_t bytes = 0;
  uint64_t align = 0;  // of a device: offset, size and address are multiples
  uint64_t file_bytes = 0;  // size of the whole file or device when opened

  bool is_device() const { return align != 0; }
};

struct Unmap {
  uint64_t bytes = 0;
  void operator()(std::byte* begin) const { munmap(begin, bytes); }
};
// A range of addresses, which the destructor unmaps.
using Mapping = std::unique_ptr<std::byte, Unmap>;

// Maps the pieces, shared and writable, one after another into one range of
// addresses.
Result<Mapping> MapContiguous(const std::vector<MapPiece>& pieces);

// Makes every page of the range present and writable, so that no collective has
// to wait for a page fault later. Leaves the contents unchanged. The range's
// space in the file must be reserved. Kernels before 5.14 cannot do this: there
// it does nothing.
Status Prefault(std::byte* begin, uint64_t bytes);

}  // namespace jax_cxl::pool

#endif  // JAX_CXL_POOL_MAPPING_MAP_H_
