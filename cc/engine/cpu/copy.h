#ifndef JAX_CXL_ENGINE_CPU_COPY_H_
#define JAX_CXL_ENGINE_CPU_COPY_H_

#include <cstddef>
#include <cstring>

// Copies between private memory and slots of the pool; `from` and `to` must not
// overlap. Ordering with doorbells is the coherence policy's business.
//
// Slots are written by memcpy. Plain stores leave a slot in the last-level
// cache, from where its reader gets it, and rings are small enough to stay
// there: only one larger than that cache would gain from other stores.
namespace jax_cxl::cpu {

inline void CopyToPool(std::byte* to, const std::byte* from, size_t bytes) {
  // memcpy of nothing still may not be given null.
  if (bytes != 0) std::memcpy(to, from, bytes);
}

inline void CopyFromPool(std::byte* to, const std::byte* from, size_t bytes) {
  if (bytes != 0) std::memcpy(to, from, bytes);
}

// Copies to memory that is large enough to have left the caches by the time
// somebody reads it: stores go past them, which neither reads `to` first nor
// drives out what is in use (rings, above all). Other threads see the bytes as
// after memcpy.
void CopyPastCaches(std::byte* to, const std::byte* from, size_t bytes);

}  // namespace jax_cxl::cpu

#endif  // JAX_CXL_ENGINE_CPU_COPY_H_
