#include "cc/store/ring/memory_ring.h"

#include <cstddef>
#include <cstdint>
#include <span>

#include "cc/base/status.h"

namespace jax_cxl::tier {

MemoryRing::MemoryRing(uint32_t number, int32_t device,
                       const pool::PersistentMemory& memory, uint64_t offset,
                       uint64_t rows)
    : Ring(number, device, {memory.num_devices(), rows}),
      memory_(memory),
      offset_(offset) {}

Status MemoryRing::Write(const Handle& handle, uint64_t begin,
                         std::span<const std::byte> from) const {
  return ForEachPiece(
      handle.position + begin, from.size(),
      [&](int device, uint64_t offset, uint64_t done, uint64_t bytes) {
        return memory_.Write(device, offset_ + offset,
                             from.subspan(done, bytes));
      });
}

Status MemoryRing::Read(const Handle& handle, uint64_t begin,
                        std::span<std::byte> to) const {
  return ForEachPiece(
      handle.position + begin, to.size(),
      [&](int device, uint64_t offset, uint64_t done, uint64_t bytes) {
        return memory_.Read(device, offset_ + offset, to.subspan(done, bytes));
      });
}

}  // namespace jax_cxl::tier
