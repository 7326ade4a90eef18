#ifndef JAX_CXL_FFI_STORE_RESIDUALS_H_
#define JAX_CXL_FFI_STORE_RESIDUALS_H_

#include <cstdint>
#include <memory>
#include <shared_mutex>

#include "cc/base/status.h"
#include "cc/tier/memory_ring.h"
#include "xla/ffi/api/ffi.h"

namespace jax_cxl::ffi {

// A ring that stays open while this object lives.
struct OpenRing {
  std::shared_ptr<tier::MemoryRing> ring;
  std::shared_lock<std::shared_mutex> in_use;

  // Fails with kFailedPrecondition if this process does not have the ring.
  static Result<OpenRing> Find(int64_t ring, int32_t device);
};

// The error if this process does not have a ring.
Status NoRing(int64_t ring, int32_t device);

// Fails with kInternal if a buffer is no handle.
Status CheckHandle(const xla::ffi::AnyBuffer& handle);

// A put copies its operand to the ring, and returns the handle. A get returns
// the value of its operand, a handle. Binds the attributes and buffers, after
// the parameters of a platform. `value` is the number of the value among those
// of a layer (jax_cxl/_tier/residuals/primitives.py).
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
