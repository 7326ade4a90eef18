#ifndef JAX_CXL_ENGINE_KERNELS_COPY_H_
#define JAX_CXL_ENGINE_KERNELS_COPY_H_

#include <cstddef>
#include <cstring>

// Copies between private memory and slots of the pool. `from` and `to` must not
// overlap. The coherence policy orders the copies with doorbells.
//
// Slots are written by memcpy. Its plain stores leave a slot in the last-level
// cache, where the reader finds it. Rings are small enough to stay there.
// Streaming stores, which bypass the caches, would help only if a ring were
// larger than that cache.
namespace jax_cxl::cpu {

inline void CopyBytes(std::byte* to, const std::byte* from, size_t bytes) {
  // memcpy must not get null pointers, even for 0 bytes.
  if (bytes != 0) std::memcpy(to, from, bytes);
}

// Copies to a range `to` that is too large to stay in the caches until a
// program reads it. The stores bypass the caches: they neither load `to` first,
// nor evict lines in use (above all the rings). Other threads see the bytes
// just as they do after memcpy.
void CopyPastCaches(std::byte* to, const std::byte* from, size_t bytes);

}  // namespace jax_cxl::cpu

#endif  // JAX_CXL_ENGINE_KERNELS_COPY_H_
