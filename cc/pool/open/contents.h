#ifndef JAX_CXL_POOL_OPEN_CONTENTS_H_
#define JAX_CXL_POOL_OPEN_CONTENTS_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "cc/base/status.h"

// Finds out whether memory holds anything. Memory of zeros may be taken.
namespace jax_cxl::pool {

// Returns the position of the first byte of [begin, end) of a file that is not
// zero, if there is one. Does not read the holes of a sparse file.
Result<std::optional<uint64_t>> FirstData(int fd, const std::string& path,
                                          uint64_t begin, uint64_t end);

// Returns the index of the first byte that is not zero, if there is one.
std::optional<uint64_t> FirstData(std::span<const std::byte> bytes);

}  // namespace jax_cxl::pool

#endif  // JAX_CXL_POOL_OPEN_CONTENTS_H_
