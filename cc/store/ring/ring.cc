#include "cc/store/ring/ring.h"

#include <atomic>
#include <cstdint>

#include "cc/base/status.h"
#include "cc/store/memory/persistent_memory.h"

namespace jax_cxl::tier {

Ring::Ring(uint32_t number, int32_t device, const Layout& layout)
    : number_(number), device_(device), layout_(layout) {}

Result<Handle> Ring::Take(uint64_t bytes) {
  const uint64_t capacity = layout_.bytes();
  const uint64_t taken = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  if (taken > capacity)
    return Error(Code::kResourceExhausted, "a residual has ", bytes,
                 " bytes, but its ring in the store has ", capacity,
                 "; please report this to jax_cxl");
  // A reader that finds a changed byte must also see the new head, so the head
  // is raised before the caller writes.
  const uint64_t position = head_.fetch_add(taken, std::memory_order_seq_cst);
  return Handle{position, number_, device_};
}

Status Ring::Check(const Handle& handle) const {
  if (handle.ring != number_ || handle.device != device_)
    return Error(Code::kInternal, "device ", device_,
                 " got the handle of a residual of device ", handle.device,
                 ", ring ", handle.ring, " instead of ", number_,
                 "; please report this to jax_cxl");
  std::atomic_thread_fence(std::memory_order_seq_cst);
  const uint64_t since =
      head_.load(std::memory_order_seq_cst) - handle.position;
  return since > layout_.bytes() ? OverwrittenError(since) : OkStatus();
}

Status Ring::OverwrittenError(uint64_t since) const {
  return Error(
      Code::kResourceExhausted,
      "a residual was overwritten before the backward pass needed it: "
      "residuals of at least ",
      since, " bytes are needed at the same time, and each device has ",
      layout_.bytes(),
      " bytes in the store. Increase `calls` of offload_residuals: it counts "
      "all calls between a forward pass and its backward pass");
}

MemoryRing::MemoryRing(uint32_t number, int32_t device,
                       const pool::PersistentMemory& memory, uint64_t offset,
                       uint64_t rows)
    : Ring(number, device, {memory.num_devices(), rows}),
      memory(memory),
      offset(offset) {}

}  // namespace jax_cxl::tier
