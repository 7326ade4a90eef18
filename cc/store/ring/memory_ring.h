#ifndef JAX_CXL_STORE_RING_MEMORY_RING_H_
#define JAX_CXL_STORE_RING_MEMORY_RING_H_

#include <cstddef>
#include <cstdint>
#include <shared_mutex>
#include <span>

#include "cc/base/status.h"
#include "cc/store/memory/persistent_memory.h"
#include "cc/store/ring/ring.h"

namespace jax_cxl::tier {

// A ring for a CPU device, with functions that copy values to the store and
// back.
//
// Thread-safe.
class MemoryRing : public Ring {
 public:
  // On each device of the memory, the ring has `rows` blocks, which begin at
  // `offset`.
  MemoryRing(uint32_t number, int32_t device,
             const pool::PersistentMemory& memory, uint64_t offset,
             uint64_t rows);

  // Write copies `from` into a value, and Read copies a part of a value to
  // `to`. The part starts at byte `begin` of the value.
  Status Write(const Handle& handle, uint64_t begin,
               std::span<const std::byte> from) const;
  Status Read(const Handle& handle, uint64_t begin,
              std::span<std::byte> to) const;

  // A program holds this lock in shared mode while it uses the ring.
  // pool::Registry::Remove holds the lock exclusively.
  mutable std::shared_mutex in_use;
  bool closed = false;  // guarded by in_use

 private:
  const pool::PersistentMemory& memory_;
  const uint64_t offset_;
};

}  // namespace jax_cxl::tier

#endif  // JAX_CXL_STORE_RING_MEMORY_RING_H_
