#ifndef JAX_CXL_TESTING_DEVICES_DEVICE_COPIES_H_
#define JAX_CXL_TESTING_DEVICES_DEVICE_COPIES_H_

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "cc/pool/pool.h"
#include "cc/testing/incoherent/incoherent_cache.h"

namespace jax_cxl::pool {

// How a modeled device accesses a pool. If the pool has emulated caches, the
// device uses the cache of its host. Otherwise it accesses the memory directly.
class DeviceCopies {
 public:
  explicit DeviceCopies(const Pool& pool)
      : cache_(dynamic_cast<IncoherentCache*>(pool.coherence().cache())) {}

  // From now on, the device's writes go to the memory, and none stays in the
  // host's cache.
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

  // StoreWord and LoadWord access words that another device polls. `kOrder` is
  // a memory order of C++.
  template <int kOrder = __ATOMIC_RELAXED>
  void StoreWord(uint64_t* word, uint64_t value) const {
    if (cache_ == nullptr) {
      __atomic_store_n(word, value, kOrder);
      return;
    }
    std::byte bytes[sizeof(value)];
    std::memcpy(bytes, &value, sizeof(value));
    Write(reinterpret_cast<std::byte*>(word), bytes, sizeof(bytes));
  }
  uint64_t LoadWord(const uint64_t* word) const {
    if (cache_ == nullptr) return __atomic_load_n(word, __ATOMIC_RELAXED);
    std::byte bytes[sizeof(uint64_t)];
    Read(bytes, reinterpret_cast<const std::byte*>(word), sizeof(bytes));
    uint64_t value;
    std::memcpy(&value, bytes, sizeof(value));
    return value;
  }

 private:
  IncoherentCache* cache_;
};

}  // namespace jax_cxl::pool

#endif  // JAX_CXL_TESTING_DEVICES_DEVICE_COPIES_H_
