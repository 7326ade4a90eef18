// A custom call that does nothing: what XLA itself needs to make a call.
// benchmarks/collectives/empty_call.py compiles and registers it.

#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;

XLA_FFI_DEFINE_HANDLER_SYMBOL(
    jax_cxl_benchmark_empty,
    [](ffi::RemainingArgs, ffi::RemainingRets, ffi::Dictionary) {
      return ffi::Error::Success();
    },
    ffi::Ffi::Bind().RemainingArgs().RemainingRets().Attrs());
