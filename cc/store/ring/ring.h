#ifndef JAX_CXL_STORE_RING_RING_H_
#define JAX_CXL_STORE_RING_RING_H_

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <shared_mutex>

#include "cc/base/status.h"

namespace jax_cxl::pool {
class PersistentMemory;
}

namespace jax_cxl::tier {

// A program's reference to a value in a ring. In the program it is a uint32
// array of 4 elements.
struct Handle {
  uint64_t position = 0;
  uint32_t ring = 0;
  int32_t device = 0;
};
static_assert(sizeof(Handle) == 16);

// How the memory of a ring is divided. It has blocks of 1 MiB, which lie on the
// devices of a store in turn.
struct Layout {
  int devices = 1;
  uint64_t rows = 0;  // blocks of each device

  static constexpr uint64_t kBlockBytes = uint64_t{1} << 20;

  uint64_t bytes() const {
    return rows * static_cast<uint64_t>(devices) * kBlockBytes;
  }
};

// One device of a job puts values into a store, and gets them back later. The
// ring gives out the places of these values, one after another. After its last
// byte it continues at its first byte, so new values overwrite the oldest ones.
// Reading a value that was overwritten is an error.
//
// Thread-safe.
class Ring {
 public:
  // Values begin at multiples of this.
  static constexpr uint64_t kAlignment = 128;

  Ring(uint32_t number, int32_t device, const Layout& layout);

  const Layout& layout() const { return layout_; }

  // Reserves the next place for a value of `bytes` bytes, and returns its
  // handle. Fails with kResourceExhausted if the value is larger than the ring.
  Result<Handle> Take(uint64_t bytes);
  // Checks that the value of `handle` is still in the ring. Call it before the
  // value is read, and again afterwards, because the value may be overwritten
  // in between. Fails with kResourceExhausted if the value was overwritten, and
  // with kInternal if the handle is of another ring.
  Status Check(const Handle& handle) const;
  // Returns the error for an overwritten value. `since` is how many bytes the
  // ring has given out since the start of that value.
  Status OverwrittenError(uint64_t since) const;

  // Calls `run(device, offset, begin, size)` for each piece of a value that
  // lies in one block, until a call fails. `offset` counts from the ring's
  // first byte on the device, and `begin` from the first byte of the value.
  template <typename Run>
  Status ForEachPiece(uint64_t position, uint64_t bytes, const Run& run) const {
    const auto devices = static_cast<uint64_t>(layout_.devices);
    for (uint64_t done = 0; done < bytes;) {
      const uint64_t at = (position + done) % layout_.bytes();
      const uint64_t block = at / Layout::kBlockBytes;
      const uint64_t inside = at % Layout::kBlockBytes;
      const uint64_t size =
          std::min(bytes - done, Layout::kBlockBytes - inside);
      CXL_RETURN_IF_ERROR(run(static_cast<int>(block % devices),
                              block / devices * Layout::kBlockBytes + inside,
                              done, size));
      done += size;
    }
    return OkStatus();
  }

  // Returns the number of bytes that the ring has given out so far. Modulo the
  // size of the ring, this is the position at which the next value begins.
  uint64_t head() const { return head_.load(std::memory_order_acquire); }

 private:
  const uint32_t number_;
  const int32_t device_;
  const Layout layout_;
  std::atomic<uint64_t> head_ = 0;
};

// A ring for a CPU device.
struct MemoryRing : Ring {
  // On each device of the memory, the ring has `rows` blocks, which begin at
  // `offset`.
  MemoryRing(uint32_t number, int32_t device,
             const pool::PersistentMemory& memory, uint64_t offset,
             uint64_t rows);

  const pool::PersistentMemory& memory;
  const uint64_t offset;

  // A program holds this lock in shared mode while it uses the ring.
  // pool::Registry::Remove holds the lock exclusively.
  mutable std::shared_mutex in_use;
  bool closed = false;  // guarded by in_use
};

}  // namespace jax_cxl::tier

#endif  // JAX_CXL_STORE_RING_RING_H_
