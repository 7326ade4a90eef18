// Puts residuals of a forward pass into a store, and gets them for the backward
// pass.

#include "cc/ffi/store/residuals.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <utility>

#include "cc/base/status.h"
#include "cc/engine/cpu/huge_pages.h"
#include "cc/ffi/errors/errors.h"
#include "cc/ffi/store/chunks.h"
#include "cc/ffi/store/handlers.h"
#include "cc/tier/memory_ring.h"
#include "cc/tier/registry.h"
#include "cc/tier/ring.h"
#include "xla/ffi/api/ffi.h"

namespace jax_cxl::ffi {
namespace {

namespace xffi = xla::ffi;

constexpr uint64_t kChunkBytes = tier::Layout::kBlockBytes;

// Runs `run(begin, size)` for the chunks of a value.
template <typename Run>
Status ForChunks(xffi::ThreadPool& pool, uint64_t bytes, const Run& run) {
  return RunChunks(pool, (bytes + kChunkBytes - 1) / kChunkBytes,
                   [&](uint64_t chunk) {
                     const uint64_t begin = chunk * kChunkBytes;
                     return run(begin, std::min(kChunkBytes, bytes - begin));
                   });
}

Status PutValue(xffi::ThreadPool& pool, const OpenRing& open,
                const xffi::AnyBuffer& value, xffi::AnyBuffer& handle) {
  CXL_RETURN_IF_ERROR(CheckHandle(handle));
  const auto* from = static_cast<const std::byte*>(value.untyped_data());
  const uint64_t bytes = value.size_bytes();
  CXL_ASSIGN_OR_RETURN(const tier::Handle made, open.ring->Take(bytes));
  CXL_RETURN_IF_ERROR(
      ForChunks(pool, bytes, [&](uint64_t begin, uint64_t size) {
        return open.ring->Write(made, begin, std::span(from + begin, size));
      }));
  std::memcpy(handle.untyped_data(), &made, sizeof(made));
  return OkStatus();
}

Status GetValue(xffi::ThreadPool& pool, const OpenRing& open,
                const xffi::AnyBuffer& handle, xffi::AnyBuffer& value) {
  CXL_RETURN_IF_ERROR(CheckHandle(handle));
  tier::Handle of;
  std::memcpy(&of, handle.untyped_data(), sizeof(of));
  CXL_RETURN_IF_ERROR(open.ring->Check(of));
  auto* to = static_cast<std::byte*>(value.untyped_data());
  const uint64_t bytes = value.size_bytes();
  cpu::PreferHugePages(to, bytes);
  CXL_RETURN_IF_ERROR(
      ForChunks(pool, bytes, [&](uint64_t begin, uint64_t size) {
        return open.ring->Read(of, begin, std::span(to + begin, size));
      }));
  return open.ring->Check(of);
}

xffi::Error ToError(const Status& status) {
  return status.ok() ? xffi::Error::Success() : ToFfiError(status);
}

xffi::Error Put(xffi::ThreadPool pool, int32_t device, int64_t ring,
                int32_t /*value*/, xffi::AnyBuffer value,
                xffi::Result<xffi::AnyBuffer> handle) {
  const Result<OpenRing> open = OpenRing::Find(ring, device);
  return ToError(open.ok() ? PutValue(pool, *open, value, *handle)
                           : open.status());
}

xffi::Error Get(xffi::ThreadPool pool, int32_t device, int64_t ring,
                int32_t /*value*/, xffi::AnyBuffer handle,
                xffi::Result<xffi::AnyBuffer> value) {
  const Result<OpenRing> open = OpenRing::Find(ring, device);
  return ToError(open.ok() ? GetValue(pool, *open, handle, *value)
                           : open.status());
}

}  // namespace

Result<OpenRing> OpenRing::Find(int64_t ring, int32_t device) {
  OpenRing open;
  open.ring = tier::Registry::Get().Find({ring, device});
  if (open.ring != nullptr) {
    open.in_use = std::shared_lock(open.ring->in_use);
    if (!open.ring->closed) return open;
  }
  return NoRing(ring, device);
}

Status NoRing(int64_t ring, int32_t device) {
  return Error(Code::kFailedPrecondition,
               "residuals: this process has no ring ", ring, " for device ",
               device,
               ". A program that offloads residuals runs only in the process "
               "that has lowered it");
}

Status CheckHandle(const xffi::AnyBuffer& handle) {
  if (handle.size_bytes() == sizeof(tier::Handle)) return OkStatus();
  return Error(Code::kInternal, "the handle of a residual has ",
               handle.size_bytes(), " bytes");
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
