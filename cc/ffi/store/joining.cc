// Joins small arrays into one, so that a snapshot reads a single array.

#include <cstddef>
#include <cstring>

#include "xla/ffi/api/ffi.h"

namespace jax_cxl::ffi {
namespace {

namespace xffi = xla::ffi;

// Copies the bytes of all operands into the result, one after the other. The
// result has as many bytes as all operands (jax_cxl/_store/writing/joining.py).
xffi::Error Join(xffi::RemainingArgs operands,
                 xffi::Result<xffi::AnyBuffer> joined) {
  auto* to = static_cast<std::byte*>(joined->untyped_data());
  for (size_t i = 0; i < operands.size(); ++i) {
    const auto operand = operands.get<xffi::AnyBuffer>(i);
    if (operand.has_error()) return operand.error();
    std::memcpy(to, operand->untyped_data(), operand->size_bytes());
    to += operand->size_bytes();
  }
  return xffi::Error::Success();
}

}  // namespace
}  // namespace jax_cxl::ffi

XLA_FFI_DEFINE_HANDLER_SYMBOL(
    jax_cxl_join, jax_cxl::ffi::Join,
    xla::ffi::Ffi::Bind().RemainingArgs().Ret<xla::ffi::AnyBuffer>());
