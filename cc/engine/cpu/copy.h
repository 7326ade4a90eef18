#ifndef JAX_CXL_ENGINE_CPU_COPY_H_
#define JAX_CXL_ENGINE_CPU_COPY_H_

#include <cstddef>
#include <cstring>

// Copies between private memory and slots of the pool; `from` and `to` must not
// overlap. Ordering with doorbells is the coherence policy's business.
//
// Both are memcpy. Non-temporal stores were measured (write a slot, read it on
// another core, rings of 2 to 16 slots): plain stores leave the slot in the
// last-level cache, so that a write and its read together take 0.8 times as
// long with slots of 1 and 4 MiB. Only a ring larger than that cache (64 MiB
// there) gains from non-temporal stores, by 13%, and rings are kept small.
namespace jax_cxl::cpu {

inline void CopyToPool(std::byte* to, const std::byte* from, size_t bytes) {
  // memcpy of nothing still may not be given null.
  if (bytes != 0) std::memcpy(to, from, bytes);
}

inline void CopyFromPool(std::byte* to, const std::byte* from, size_t bytes) {
  if (bytes != 0) std::memcpy(to, from, bytes);
}

}  // namespace jax_cxl::cpu

#endif  // JAX_CXL_ENGINE_CPU_COPY_H_
