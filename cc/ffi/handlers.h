#ifndef JAX_CXL_FFI_HANDLERS_H_
#define JAX_CXL_FFI_HANDLERS_H_

#include "xla/ffi/api/c_api.h"

// XLA custom-call handlers of collectives for platform "cpu". All except
// check_slices share one Instantiate stage, whose state is a CallSite.
extern "C" {
XLA_FFI_Error* jax_cxl_instantiate(XLA_FFI_CallFrame* frame);
// These three handlers execute calls. Class Handlers in binding.h explains
// their operands.
XLA_FFI_Error* jax_cxl_collective(XLA_FFI_CallFrame* frame);
XLA_FFI_Error* jax_cxl_rows(XLA_FFI_CallFrame* frame);
XLA_FFI_Error* jax_cxl_barrier(XLA_FFI_CallFrame* frame);
// Checks tables of slices. This handler has no state.
XLA_FFI_Error* jax_cxl_check_slices(XLA_FFI_CallFrame* frame);
}

#endif  // JAX_CXL_FFI_HANDLERS_H_
