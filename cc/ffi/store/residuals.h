#ifndef JAX_CXL_FFI_STORE_RESIDUALS_H_
#define JAX_CXL_FFI_STORE_RESIDUALS_H_

#include <cstdint>
#include <memory>
#include <utility>

#include "cc/base/status.h"
#include "cc/ffi/errors/errors.h"
#include "xla/ffi/api/ffi.h"

namespace jax_cxl::ffi {

// The error if this process does not have a ring.
Status NoRing(int64_t ring, int32_t device);

// Fails with kInternal if a buffer is not a handle.
Status CheckHandle(const xla::ffi::AnyBuffer& handle);

// Checks the handle, and calls `run` with its ring, or with null if this
// process does not have that ring. Returns what a handler returns.
template <typename Ring, typename Run>
xla::ffi::Error OnRing(const std::shared_ptr<Ring>& found, int64_t ring,
                       int32_t device, const xla::ffi::AnyBuffer& handle,
                       const Run& run) {
  Status status = found == nullptr ? NoRing(ring, device) : CheckHandle(handle);
  if (status.ok()) status = run(*found);
  return ToFfiError(status);
}

// A put copies its operand to the ring, and returns the handle. A get returns
// the value of its operand, a handle. Binds the attributes and buffers, after
// the parameters of a platform. `value` is the value's number within its layer
// (jax_cxl/_tier/residuals/primitives.py).
template <typename Binding>
auto BindResidual(Binding binding) {
  return std::move(binding)
      .template Ctx<xla::ffi::DeviceOrdinal>()
      .template Attr<int64_t>("ring")
      .template Attr<int32_t>("value")
      .template Arg<xla::ffi::AnyBuffer>()
      .template Ret<xla::ffi::AnyBuffer>();
}

}  // namespace jax_cxl::ffi

#endif  // JAX_CXL_FFI_STORE_RESIDUALS_H_
