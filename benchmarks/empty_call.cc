// A custom call that does nothing: what XLA itself needs to make a call.
// benchmarks/call_overhead.py compiles and registers it.

#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;

XLA_FFI_DEFINE_HANDLER_SYMBOL(
    jax_cxl_benchmark_empty,
    [](ffi::AnyBuffer, ffi::Result<ffi::AnyBuffer>) {
      return ffi::Error::Success();
    },
    ffi::Ffi::Bind().Arg<ffi::AnyBuffer>().Ret<ffi::AnyBuffer>());
