#ifndef JAX_CXL_FFI_STORE_RESIDUALS_H_
#define JAX_CXL_FFI_STORE_RESIDUALS_H_

#include <cstdint>
#include <shared_mutex>
#include <utility>

#include "cc/base/status.h"
#include "cc/ffi/errors/errors.h"
#include "cc/store/memory/registry.h"
#include "cc/store/ring/ring.h"
#include "xla/ffi/api/ffi.h"

namespace jax_cxl::ffi {

Status NoRing(int64_t ring, int32_t device);

// Checks that the buffer `handle` is a handle, and calls `run` with the open
// ring of `device` with the number `ring`. The ring stays open while `run` uses
// it. Fails with NoRing(ring, device) if this process does not have that ring.
// Converts errors to those that handlers return to XLA.
template <typename Ring, typename Run>
xla::ffi::Error OnRing(int64_t ring, int32_t device,
                       const xla::ffi::AnyBuffer& handle, const Run& run) {
  const auto on_open = [&]() -> Status {
    const auto found = pool::Registry<Ring>::Get().Find({ring, device});
    if (found == nullptr) return NoRing(ring, device);
    if (handle.size_bytes() != sizeof(tier::Handle))
      return NotLowered("a residual");
    std::shared_lock in_use(found->in_use);
    return found->closed ? NoRing(ring, device) : run(*found);
  };
  return ToFfiError(on_open());
}

// Adds the attributes and buffers of a put or a get to `binding`, which has
// bound the parameters that depend on the platform. A put copies its operand to
// the ring, and its result is a handle. A get has a handle as its operand, and
// its result is the value. The attribute `value` is the number of the value
// within its layer (jax_cxl/_tier/residuals/primitives.py).
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
