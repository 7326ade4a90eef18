#ifndef JAX_CXL_POOL_OPEN_DAX_H_
#define JAX_CXL_POOL_OPEN_DAX_H_

#include <sys/stat.h>
#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <string>

#include "cc/base/status.h"
#include "cc/pool/open/file.h"

// The requirements of a dax device. They come from sysfs, because fstat of a
// device does not report them (its st_size is 0).
namespace jax_cxl::pool {

// How the library finds and opens dax devices on this machine. Tests replace it
// with a tree of files, and use regular files as devices.
struct DaxSystem {
  std::string sysfs = "/sys";

  // Returns the device number of an open device, or the reason why it has none.
  std::function<Result<dev_t>(const struct stat& info, const std::string& path)>
      device_number;

  static DaxSystem Machine();
};

struct DaxLimits {
  uint64_t align = 0;  // offset, length and address are multiples of it
  uint64_t size = 0;
};

Result<DaxLimits> ReadDaxLimits(int fd, const std::string& path,
                                const DaxSystem& system);

// The part of a device that a job uses.
struct DaxPart {
  DaxLimits limits;  // of the whole device
  uint64_t bytes = 0;
};

// Locks `bytes` bytes of a device from `offset` on, for this process alone if
// `exclusive`. 0 bytes stand for the rest of the device. Errors:
// kInvalidArgument if the part does not fit the device, and the errors of
// PoolFile::LockRange.
Result<DaxPart> TakeDaxPart(PoolFile* device, uint64_t offset, uint64_t bytes,
                            bool exclusive, const DaxSystem& system);

}  // namespace jax_cxl::pool

#endif  // JAX_CXL_POOL_OPEN_DAX_H_
