#include "cc/tier/ring.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

#include "cc/base/status.h"

namespace jax_cxl::tier {

uint64_t Region::bytes() const {
  return rows * static_cast<uint64_t>(memory->num_devices()) * kBlockBytes;
}

Ring::Ring(uint32_t number, int32_t device, const Region& region)
    : number_(number), device_(device), region_(region) {}

Result<Handle> Ring::Take(uint64_t bytes) {
  const uint64_t capacity = region_.bytes();
  const uint64_t taken = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  if (taken > capacity)
    return Error(Code::kResourceExhausted, "a residual has ", bytes,
                 " bytes, and its ring in the store has ", capacity);
  // Readers must see the new head before the first byte changes.
  const uint64_t position = head_.fetch_add(taken, std::memory_order_seq_cst);
  return Handle{position, number_, device_};
}

Status Ring::Check(const Handle& handle) const {
  if (handle.ring != number_ || handle.device != device_)
    return Error(Code::kInternal, "device ", device_,
                 " got the handle of a residual of device ", handle.device,
                 ", ring ", handle.ring, " instead of ", number_);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  const uint64_t since = head_.load(std::memory_order_seq_cst) - handle.position;
  const uint64_t capacity = region_.bytes();
  if (since > capacity)
    return Error(
        Code::kResourceExhausted,
        "a residual was overwritten before the backward pass needed it: "
        "residuals of at least ",
        since, " bytes are needed at the same time, and each device has ",
        capacity,
        " bytes in the store. Increase `calls` of offload_residuals: it counts "
        "all calls between a forward pass and its backward pass");
  return OkStatus();
}

Status Ring::Write(const Handle& handle, uint64_t begin,
                   std::span<const std::byte> from) const {
  return ForEachPiece(
      handle.position + begin, from.size(),
      [&](int device, uint64_t offset, uint64_t done, uint64_t bytes) {
        return region_.memory->Write(device, offset, from.subspan(done, bytes));
      });
}

Status Ring::Read(const Handle& handle, uint64_t begin,
                  std::span<std::byte> to) const {
  return ForEachPiece(
      handle.position + begin, to.size(),
      [&](int device, uint64_t offset, uint64_t done, uint64_t bytes) {
        return region_.memory->Read(device, offset, to.subspan(done, bytes));
      });
}

Ring::Piece Ring::PieceAt(uint64_t position, uint64_t most) const {
  const uint64_t at = position % region_.bytes();
  const uint64_t block = at / Region::kBlockBytes;
  const uint64_t inside = at % Region::kBlockBytes;
  const auto devices = static_cast<uint64_t>(region_.memory->num_devices());
  return {static_cast<int>(block % devices),
          region_.offset + block / devices * Region::kBlockBytes + inside,
          std::min(most, Region::kBlockBytes - inside)};
}

}  // namespace jax_cxl::tier
