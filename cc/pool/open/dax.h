#ifndef JAX_CXL_POOL_OPEN_DAX_H_
#define JAX_CXL_POOL_OPEN_DAX_H_

#include <sys/stat.h>
#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <string>

#include "cc/base/status.h"
#include "cc/pool/open/file.h"

// What a dax device demands. The device itself says nothing (its st_size is
// 0), sysfs does.
namespace jax_cxl::pool {

// The machine as dax devices see it. Tests replace it with a tree of files and
// let a regular file play the device.
struct DaxSystem {
  std::string sysfs = "/sys";

  // The device number of an open device, or why it is none.
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

// Locks `bytes` bytes from `offset` on, or all of the rest for 0, for this
// process alone if `exclusive`.
// Errors: kInvalidArgument if that does not fit the device; as
// PoolFile::LockRange.
Result<DaxPart> TakeDaxPart(PoolFile* device, uint64_t offset, uint64_t bytes,
                            bool exclusive, const DaxSystem& system);

}  // namespace jax_cxl::pool

#endif  // JAX_CXL_POOL_OPEN_DAX_H_
