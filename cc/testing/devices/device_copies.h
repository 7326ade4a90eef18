#ifndef JAX_CXL_TESTING_DEVICES_DEVICE_COPIES_H_
#define JAX_CXL_TESTING_DEVICES_DEVICE_COPIES_H_

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "cc/pool/pool.h"
#include "cc/testing/incoherent/incoherent_cache.h"

namespace jax_cxl::pool {

// How a modelled device accesses a pool: through the emulated cache of its
// host, if the pool has one, else like a device of a machine without such
// caches.
class DeviceCopies {
 public:
  explicit DeviceCopies(const Pool& pool)
      : cache_(dynamic_cast<IncoherentCache*>(pool.coherence().cache())) {}

  // From now on, none of its writes stays in the cache.
  void WriteMemory() {
    if (cache_ != nullptr) cache_->DevicesWriteMemory();
  }

  void Write(std::byte* to, const std::byte* from, uint64_t bytes) const {
    if (cache_ != nullptr)
      cache_->DeviceWrite(to, from, bytes);
    else
      std::memcpy(to, from, bytes);
  }
  void Read(std::byte* to, const std::byte* from, uint64_t bytes) const {
    if (cache_ != nullptr)
      cache_->DeviceRead(to, from, bytes);
    else
      std::memcpy(to, from, bytes);
  }

 private:
  IncoherentCache* cache_;
};

}  // namespace jax_cxl::pool

#endif  // JAX_CXL_TESTING_DEVICES_DEVICE_COPIES_H_
