#ifndef JAX_CXL_POOL_CACHE_H_
#define JAX_CXL_POOL_CACHE_H_

#include <cstddef>
#include <cstdint>

namespace jax_cxl::pool {

// What `Coherence` needs of the cache between a process and a pool that is not
// coherent: a host's own (HardwareCache), or the emulated one of a kIncoherent
// pool, which tests use.
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
};

// The instructions of this processor.
Cache* HardwareCache();

}  // namespace jax_cxl::pool

#endif  // JAX_CXL_POOL_CACHE_H_
