#ifndef JAX_CXL_TIER_RING_H_
#define JAX_CXL_TIER_RING_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <shared_mutex>
#include <span>

#include "cc/base/status.h"
#include "cc/pool/persistent/persistent_memory.h"

namespace jax_cxl::tier {

// What a program keeps of a value in a ring: a uint32 array of 4 elements.
struct Handle {
  uint64_t position = 0;
  uint32_t ring = 0;
  int32_t device = 0;
};
static_assert(sizeof(Handle) == 16);

// A part of every device of a store.
struct Region {
  const pool::PersistentMemory* memory = nullptr;
  uint64_t offset = 0;  // on each device
  uint64_t rows = 0;    // blocks of each device

  static constexpr uint64_t kBlockBytes = uint64_t{1} << 20;

  // Bytes of all devices together.
  uint64_t bytes() const;
};

// Values that one device of a job puts into a store, and gets back later.
// Their bytes follow each other; blocks of a MiB lie on the devices of the
// store in turn. At the end of the region the first byte follows, and new
// values overwrite the oldest ones. A value that was overwritten is an error
// when it is read.
//
// Thread-safe.
class Ring {
 public:
  // Values begin at multiples of this.
  static constexpr uint64_t kAlignment = 128;

  Ring(uint32_t number, int32_t device, const Region& region);

  const Region& region() const { return region_; }

  // Takes the place of a value. Fails with kResourceExhausted if the value is
  // larger than the ring.
  Result<Handle> Take(uint64_t bytes);
  // Call it before the value is read, and afterwards. Fails with
  // kResourceExhausted if the value was overwritten, and with kInternal if the
  // handle is of another ring.
  Status Check(const Handle& handle) const;

  // Copies bytes of a value, `begin` is the first of them.
  Status Write(const Handle& handle, uint64_t begin,
               std::span<const std::byte> from) const;
  Status Read(const Handle& handle, uint64_t begin,
              std::span<std::byte> to) const;

  // Calls `run(device, offset, begin, size)` for each piece of a value that
  // lies in one block, until it fails.
  template <typename Run>
  Status ForEachPiece(uint64_t position, uint64_t bytes, const Run& run) const {
    for (uint64_t done = 0; done < bytes;) {
      const Piece piece = PieceAt(position + done, bytes - done);
      CXL_RETURN_IF_ERROR(run(piece.device, piece.offset, done, piece.bytes));
      done += piece.bytes;
    }
    return OkStatus();
  }

  // The number of bytes that all values so far have taken.
  uint64_t head() const { return head_.load(std::memory_order_acquire); }

  // Held shared while a program uses the ring.
  mutable std::shared_mutex in_use;
  bool closed = false;  // guarded by in_use

 private:
  struct Piece {
    int device;
    uint64_t offset;
    uint64_t bytes;
  };

  Piece PieceAt(uint64_t position, uint64_t most) const;

  const uint32_t number_;
  const int32_t device_;
  const Region region_;
  std::atomic<uint64_t> head_ = 0;
};

}  // namespace jax_cxl::tier

#endif  // JAX_CXL_TIER_RING_H_
