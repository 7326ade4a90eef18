// Joins small arrays into one, so that a snapshot reads a single array.

#include <cstddef>
#include <cstring>

#include "cc/base/status.h"
#include "cc/ffi/errors/errors.h"
#include "xla/ffi/api/ffi.h"

namespace jax_cxl::ffi {
namespace {

namespace xffi = xla::ffi;

// Copies the bytes of all operands into the result, one after the other.
xffi::Error Join(xffi::RemainingArgs operands,
                 xffi::Result<xffi::AnyBuffer> joined) {
  auto* to = static_cast<std::byte*>(joined->untyped_data());
  size_t room = joined->size_bytes();
  for (size_t i = 0; i < operands.size(); ++i) {
    const auto operand = operands.get<xffi::AnyBuffer>(i);
    if (operand.has_error()) return operand.error();
    const size_t size = operand->size_bytes();
    if (size > room)
      return ToFfiError(Error(Code::kInternal,
                              "joined arrays are larger than the result; "
                              "please report this to jax_cxl"));
    std::memcpy(to, operand->untyped_data(), size);
    to += size;
    room -= size;
  }
  return xffi::Error::Success();
}

}  // namespace
}  // namespace jax_cxl::ffi

XLA_FFI_DEFINE_HANDLER_SYMBOL(
    jax_cxl_join, jax_cxl::ffi::Join,
    xla::ffi::Ffi::Bind().RemainingArgs().Ret<xla::ffi::AnyBuffer>());
