#ifndef JAX_CXL_STORE_RING_MEMORY_RING_H_
#define JAX_CXL_STORE_RING_MEMORY_RING_H_

#include <cstdint>
#include <shared_mutex>

#include "cc/store/memory/persistent_memory.h"
#include "cc/store/ring/ring.h"

namespace jax_cxl::tier {

// A ring for a CPU device.
struct MemoryRing : Ring {
  // On each device of the memory, the ring has `rows` blocks, which begin at
  // `offset`.
  MemoryRing(uint32_t number, int32_t device,
             const pool::PersistentMemory& memory, uint64_t offset,
             uint64_t rows)
      : Ring(number, device, {memory.num_devices(), rows}),
        memory(memory),
        offset(offset) {}

  const pool::PersistentMemory& memory;
  const uint64_t offset;

  // A program holds this lock in shared mode while it uses the ring.
  // pool::Registry::Remove holds the lock exclusively.
  mutable std::shared_mutex in_use;
  bool closed = false;  // guarded by in_use
};

}  // namespace jax_cxl::tier

#endif  // JAX_CXL_STORE_RING_MEMORY_RING_H_
