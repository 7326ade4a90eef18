#ifndef JAX_CXL_POOL_COHERENCE_CACHE_H_
#define JAX_CXL_POOL_COHERENCE_CACHE_H_

#include <cstddef>
#include <cstdint>

namespace jax_cxl::pool {

// What `Coherence` needs of the cache between a process and a pool that is not
// coherent: the cache of this host (HardwareCache), or one that tests emulate.
//
// Safe to use from any thread.
class Cache {
 public:
  virtual ~Cache() = default;

  // Start to write back, or to drop, each line that the range touches. Dropping
  // a line that has stores writes it back first. Done after the next fence.
  virtual void WriteBack(const void* begin, size_t bytes) = 0;
  virtual void Invalidate(const void* begin, size_t bytes) = 0;

  // This thread's earlier stores and write-backs before its later ones.
  virtual void StoreFence() = 0;
  // Everything of this thread that is earlier before everything later.
  virtual void FullFence() = 0;

  // Loads a flag, with acquire ordering.
  virtual uint64_t Load(const uint64_t* flag) = 0;
  // Stores a flag, with release ordering.
  virtual void Store(uint64_t* flag, uint64_t value) = 0;
};

// The instructions of this processor.
Cache* HardwareCache();

}  // namespace jax_cxl::pool

#endif  // JAX_CXL_POOL_COHERENCE_CACHE_H_
