#ifndef JAX_CXL_STORE_RING_REGISTRY_H_
#define JAX_CXL_STORE_RING_REGISTRY_H_

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "cc/store/ring/memory_ring.h"

namespace jax_cxl::tier {

// The rings of this process's CPU devices. The name of a ring is its number and
// its device's ordinal in XLA.
//
// Thread-safe.
class Registry {
 public:
  using Name = std::pair<int64_t, int32_t>;

  static Registry& Get();

  void Add(const Name& name, std::shared_ptr<MemoryRing> ring);
  // Removes the ring, and waits until no program uses it. Afterwards the memory
  // of the ring may be unmapped.
  void Remove(const Name& name);
  // Returns null if no ring has this name.
  std::shared_ptr<MemoryRing> Find(const Name& name) const;

 private:
  mutable std::mutex mutex_;
  std::map<Name, std::shared_ptr<MemoryRing>> rings_;
};

}  // namespace jax_cxl::tier

#endif  // JAX_CXL_STORE_RING_REGISTRY_H_
