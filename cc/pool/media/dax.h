#ifndef JAX_CXL_POOL_MEDIA_DAX_H_
#define JAX_CXL_POOL_MEDIA_DAX_H_

#include <sys/stat.h>
#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <string>

#include "cc/base/status.h"

namespace jax_cxl::pool {

// How the library finds and opens dax devices on this machine. Tests fill a
// folder of their own as `sysfs`, and use regular files as devices.
struct DaxSystem {
  std::string sysfs = "/sys";

  // Returns the device number of an open device, or the reason why it has none.
  std::function<Result<dev_t>(const struct stat& info, const std::string& path)>
      device_number;

  static const DaxSystem& Machine();
};

// The size of a dax device, and the alignment that it requires. Both come from
// sysfs, because fstat does not report them (the st_size of a device is 0).
struct DaxLimits {
  uint64_t align = 0;  // offset, length and address are multiples of it
  uint64_t size = 0;
};

Result<DaxLimits> ReadDaxLimits(int fd, const std::string& path,
                                const DaxSystem& system);

}  // namespace jax_cxl::pool

#endif  // JAX_CXL_POOL_MEDIA_DAX_H_
