#ifndef JAX_CXL_FFI_HANDLERS_H_
#define JAX_CXL_FFI_HANDLERS_H_

#include "xla/ffi/api/c_api.h"

// XLA custom-call handlers of collectives for platform "cpu". They share one
// Instantiate stage, whose state is a CallSite.
extern "C" {
XLA_FFI_Error* jax_cxl_instantiate(XLA_FFI_CallFrame* frame);
// One operand, one result.
XLA_FFI_Error* jax_cxl_collective(XLA_FFI_CallFrame* frame);
// take_rows and ragged_all_to_all: see row_buffers.h.
XLA_FFI_Error* jax_cxl_rows(XLA_FFI_CallFrame* frame);
// Any number of operands, each aliased to its result.
XLA_FFI_Error* jax_cxl_barrier(XLA_FFI_CallFrame* frame);
// Takes tables (slice_check.h) and any number of values, each aliased to its
// result. It has no state.
XLA_FFI_Error* jax_cxl_check_slices(XLA_FFI_CallFrame* frame);
}

#endif  // JAX_CXL_FFI_HANDLERS_H_
