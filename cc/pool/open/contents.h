#ifndef JAX_CXL_POOL_OPEN_CONTENTS_H_
#define JAX_CXL_POOL_OPEN_CONTENTS_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "cc/base/status.h"
#include "cc/pool/mapping/map.h"

// Reads files and devices. Devices have to be mapped, because they do not
// support read(). In all functions, `align` is the alignment of a device, or 0
// for a file.
namespace jax_cxl::pool {

// A range of a file or device that is mapped for reading.
class Window {
 public:
  static Result<Window> Map(int fd, const std::string& path, uint64_t align,
                            uint64_t offset, uint64_t bytes);

  const std::byte* at(uint64_t offset) const {
    return mapped_.get() + skipped_ + offset;
  }

 private:
  Window(Mapping mapped, uint64_t skipped)
      : mapped_(std::move(mapped)), skipped_(skipped) {}

  Mapping mapped_;
  uint64_t skipped_;
};

// Copies `to.size()` bytes of a file or device, from `offset` on. For a device,
// never copies old bytes from this host's cache. Returns how many bytes it
// copied. They are fewer than `to.size()` only at the end of a file.
Result<uint64_t> ReadAt(int fd, const std::string& path, uint64_t align,
                        uint64_t offset, std::span<std::byte> to);

// Returns the position of the first byte in [begin, end) that is not zero.
// Returns nothing if all bytes are zeros, so that a pool may take the memory.
// Does not read the holes of a sparse file.
Result<std::optional<uint64_t>> FirstData(int fd, const std::string& path,
                                          uint64_t align, uint64_t begin,
                                          uint64_t end);

}  // namespace jax_cxl::pool

#endif  // JAX_CXL_POOL_OPEN_CONTENTS_H_
