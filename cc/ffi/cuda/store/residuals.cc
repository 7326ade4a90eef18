// Puts residuals from a GPU into a store, and gets them back.

#include "cc/ffi/store/residuals.h"

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "cc/store/cuda/device_ring.h"
#include "cc/store/cuda/kernels/get.h"
#include "xla/ffi/api/ffi.h"

namespace jax_cxl::ffi {
namespace {

namespace xffi = xla::ffi;
using tier::DeviceHandle;

xffi::Error Put(cudaStream_t stream, int32_t device, int64_t ring,
                int32_t number, xffi::AnyBuffer value,
                xffi::Result<xffi::AnyBuffer> handle) {
  return OnRing<comm::DeviceRing>(
      ring, device, *handle, [&](comm::DeviceRing& on) {
        return on.Put(
            number, static_cast<const std::byte*>(value.untyped_data()),
            value.size_bytes(),
            static_cast<DeviceHandle*>(handle->untyped_data()), stream);
      });
}

xffi::Error Get(cudaStream_t stream, int32_t device, int64_t ring,
                int32_t number, xffi::AnyBuffer handle,
                xffi::Result<xffi::AnyBuffer> value) {
  return OnRing<comm::DeviceRing>(
      ring, device, handle, [&](comm::DeviceRing& on) {
        return on.Get(number,
                      static_cast<const DeviceHandle*>(handle.untyped_data()),
                      static_cast<std::byte*>(value->untyped_data()),
                      value->size_bytes(), stream);
      });
}

}  // namespace
}  // namespace jax_cxl::ffi

XLA_FFI_DEFINE_HANDLER_SYMBOL(
    jax_cxl_cuda_put_residual, jax_cxl::ffi::Put,
    jax_cxl::ffi::BindResidual(
        xla::ffi::Ffi::Bind().Ctx<xla::ffi::PlatformStream<cudaStream_t>>()));

XLA_FFI_DEFINE_HANDLER_SYMBOL(
    jax_cxl_cuda_get_residual, jax_cxl::ffi::Get,
    jax_cxl::ffi::BindResidual(
        xla::ffi::Ffi::Bind().Ctx<xla::ffi::PlatformStream<cudaStream_t>>()));
