#ifndef JAX_CXL_POOL_COHERENCE_CACHE_H_
#define JAX_CXL_POOL_COHERENCE_CACHE_H_

#include <cstddef>
#include <cstdint>

namespace jax_cxl::pool {

// The cache between a process and a pool that is not coherent. `Coherence` uses
// the cache of this host (HardwareCache), or a cache that tests emulate. Fences
// and flags are those of the processor, unless a class overrides them.
//
// Thread-safe.
class Cache {
 public:
  virtual ~Cache() = default;

  // Starts to write back, or to drop, each cache line that the range touches.
  // Dropping a line with stores writes it back first. The operation is complete
  // after the next fence.
  virtual void WriteBack(const void* begin, size_t bytes) = 0;
  virtual void Invalidate(const void* begin, size_t bytes) = 0;

  // Orders this thread's earlier stores and write-backs before its later ones.
  virtual void StoreFence();
  // Orders all earlier operations of this thread before all later ones.
  virtual void FullFence();

  // Loads a flag, with acquire ordering.
  virtual uint64_t Load(const uint64_t* flag);
  // Stores a flag, with release ordering.
  virtual void Store(uint64_t* flag, uint64_t value);
};

// Returns the cache of this host, which uses the processor's cache
// instructions.
Cache* HardwareCache();

}  // namespace jax_cxl::pool

#endif  // JAX_CXL_POOL_COHERENCE_CACHE_H_
