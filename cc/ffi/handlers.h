#ifndef JAX_CXL_FFI_HANDLERS_H_
#define JAX_CXL_FFI_HANDLERS_H_

#include "xla/ffi/api/c_api.h"

// XLA custom-call handlers for platform "cpu". They share one Instantiate
// stage, whose state is a CallSite.
extern "C" {
XLA_FFI_Error* jax_cxl_instantiate(XLA_FFI_CallFrame* frame);
// One operand, one result.
XLA_FFI_Error* jax_cxl_collective(XLA_FFI_CallFrame* frame);
// Operand, output and table (plan::Ragged). The result is aliased to the
// output.
XLA_FFI_Error* jax_cxl_ragged(XLA_FFI_CallFrame* frame);
// Operand, indices and, optionally, which rows of the operand to publish.
XLA_FFI_Error* jax_cxl_take_rows(XLA_FFI_CallFrame* frame);
// Any number of operands, each aliased to its result.
XLA_FFI_Error* jax_cxl_barrier(XLA_FFI_CallFrame* frame);
}

#endif  // JAX_CXL_FFI_HANDLERS_H_
