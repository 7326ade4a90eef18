#include "cc/ffi/call/contract.h"

#include <string>

namespace jax_cxl::ffi {

namespace xffi = xla::ffi;

xffi::ErrorOr<CallAttributes> CallAttributes::Read(
    const xffi::Dictionary& attributes) {
  CallAttributes read;
  std::string missing;
#define JAX_CXL_READ(type, name)                       \
  if (auto value = attributes.get<type>(#name); value) \
    read.name = *value;                                \
  else                                                 \
    missing = #name;
  JAX_CXL_CALL_ATTRIBUTES(JAX_CXL_READ)
#undef JAX_CXL_READ
  if (missing.empty()) return read;
  return xffi::Unexpected(xffi::Error::Internal(
      "a jax_cxl custom call lacks the attribute '" + missing +
      "': another version of jax_cxl lowered it. Compile the program again"));
}

}  // namespace jax_cxl::ffi
