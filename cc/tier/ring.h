#ifndef JAX_CXL_TIER_RING_H_
#define JAX_CXL_TIER_RING_H_

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "cc/base/status.h"

namespace jax_cxl::tier {

// A program's reference to a value in a ring: a uint32 array of 4 elements.
struct Handle {
  uint64_t position = 0;
  uint32_t ring = 0;
  int32_t device = 0;
};
static_assert(sizeof(Handle) == 16);

// How the memory of a ring is divided. Its blocks of 1 MiB lie on the devices
// of a store in turn.
struct Layout {
  int devices = 1;
  uint64_t rows = 0;  // blocks of each device

  static constexpr uint64_t kBlockBytes = uint64_t{1} << 20;

  uint64_t bytes() const {
    return rows * static_cast<uint64_t>(devices) * kBlockBytes;
  }
};

// Gives out the places of values that one device of a job puts into a store,
// and gets back later. The values follow each other. After its last byte, the
// ring continues at its first byte, and new values overwrite the oldest values.
// Reading a value that was overwritten is an error.
//
// Thread-safe.
class Ring {
 public:
  // Values begin at multiples of this.
  static constexpr uint64_t kAlignment = 128;

  Ring(uint32_t number, int32_t device, const Layout& layout);

  const Layout& layout() const { return layout_; }

  // Takes the place of a value. Fails with kResourceExhausted if the value is
  // larger than the ring.
  Result<Handle> Take(uint64_t bytes);
  // Call it before the value is read, and afterwards. Fails with
  // kResourceExhausted if the value was overwritten, and with kInternal if the
  // handle is of another ring.
  Status Check(const Handle& handle) const;
  // The error for an overwritten value, if the ring took `since` bytes, counted
  // from the start of that value.
  Status OverwrittenError(uint64_t since) const;

  // Calls `run(device, offset, begin, size)` for each piece of a value that
  // lies in one block, until a call fails. `offset` counts from the ring's
  // first byte on the device.
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

 private:
  struct Piece {
    int device;
    uint64_t offset;
    uint64_t bytes;
  };

  Piece PieceAt(uint64_t position, uint64_t most) const;

  const uint32_t number_;
  const int32_t device_;
  const Layout layout_;
  std::atomic<uint64_t> head_ = 0;
};

}  // namespace jax_cxl::tier

#endif  // JAX_CXL_TIER_RING_H_
