// Puts the residuals of a forward pass into a store, and gets them back for the
// backward pass.

#include "cc/ffi/store/residuals.h"

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "cc/base/status.h"
#include "cc/engine/cpu/huge_pages.h"
#include "cc/ffi/errors/errors.h"
#include "cc/ffi/store/chunks.h"
#include "cc/store/memory/persistent_memory.h"
#include "cc/store/ring/ring.h"
#include "xla/ffi/api/ffi.h"

namespace jax_cxl::ffi {
namespace {

namespace xffi = xla::ffi;

// Calls `copy(device, offset, begin, size)` for each piece of a value, in
// several threads. `offset` counts from the first byte of the device, and
// `begin` from the first byte of the value.
template <typename Copy>
Status CopyPieces(xffi::ThreadPool& pool, const tier::MemoryRing& on,
                  uint64_t position, uint64_t bytes, const Copy& copy) {
  return RunChunks(
      pool, bytes, tier::Layout::kBlockBytes,
      [&](uint64_t begin, uint64_t end) {
        return on.ForEachPiece(
            position + begin, end - begin,
            [&](int device, uint64_t offset, uint64_t done, uint64_t size) {
              return copy(device, on.offset + offset, begin + done, size);
            });
      });
}

xffi::Error Put(xffi::ThreadPool pool, int32_t device, int64_t ring,
                int32_t /*value*/, xffi::AnyBuffer value,
                xffi::Result<xffi::AnyBuffer> handle) {
  return OnRing<tier::MemoryRing>(
      ring, device, *handle, [&](tier::MemoryRing& on) -> Status {
        const auto* from = static_cast<const std::byte*>(value.untyped_data());
        const uint64_t bytes = value.size_bytes();
        CXL_ASSIGN_OR_RETURN(const tier::Handle made, on.Take(bytes));
        CXL_RETURN_IF_ERROR(CopyPieces(
            pool, on, made.position, bytes,
            [&](int device, uint64_t offset, uint64_t begin, uint64_t size) {
              return on.memory.Write(device, offset, {from + begin, size});
            }));
        std::memcpy(handle->untyped_data(), &made, sizeof(made));
        return OkStatus();
      });
}

xffi::Error Get(xffi::ThreadPool pool, int32_t device, int64_t ring,
                int32_t /*value*/, xffi::AnyBuffer handle,
                xffi::Result<xffi::AnyBuffer> value) {
  return OnRing<tier::MemoryRing>(
      ring, device, handle, [&](tier::MemoryRing& on) -> Status {
        tier::Handle of;
        std::memcpy(&of, handle.untyped_data(), sizeof(of));
        CXL_RETURN_IF_ERROR(on.Check(of));
        auto* to = static_cast<std::byte*>(value->untyped_data());
        const uint64_t bytes = value->size_bytes();
        cpu::PreferHugePages(to, bytes);
        CXL_RETURN_IF_ERROR(CopyPieces(
            pool, on, of.position, bytes,
            [&](int device, uint64_t offset, uint64_t begin, uint64_t size) {
              return on.memory.Read(device, offset, {to + begin, size});
            }));
        return on.Check(of);
      });
}

}  // namespace

Status NoRing(int64_t ring, int32_t device) {
  return Error(Code::kFailedPrecondition,
               "residuals: this process has no buffer ", ring, " for device ",
               device,
               ". A program that offloads residuals runs only in the process "
               "that has lowered it: lower and compile it again in this one");
}

}  // namespace jax_cxl::ffi

XLA_FFI_DEFINE_HANDLER_SYMBOL(
    jax_cxl_put_residual, jax_cxl::ffi::Put,
    jax_cxl::ffi::BindResidual(
        xla::ffi::Ffi::Bind().Ctx<xla::ffi::ThreadPool>()));

XLA_FFI_DEFINE_HANDLER_SYMBOL(
    jax_cxl_get_residual, jax_cxl::ffi::Get,
    jax_cxl::ffi::BindResidual(
        xla::ffi::Ffi::Bind().Ctx<xla::ffi::ThreadPool>()));
