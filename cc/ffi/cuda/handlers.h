#ifndef JAX_CXL_FFI_CUDA_HANDLERS_H_
#define JAX_CXL_FFI_CUDA_HANDLERS_H_

#include "xla/ffi/api/c_api.h"

// XLA custom-call handlers for platform "CUDA". They enqueue on XLA's stream
// and return. All but done and tie share one Instantiate stage, whose state is
// a CallSite. None is marked as compatible with command buffers (CUDA graphs):
// a call's number is an argument of its kernel, which a replay would repeat.
extern "C" {
XLA_FFI_Error* jax_cxl_cuda_instantiate(XLA_FFI_CallFrame* frame);
// One operand, one result.
XLA_FFI_Error* jax_cxl_cuda_collective(XLA_FFI_CallFrame* frame);
// Operand, output and table (plan::Ragged); the result is aliased to output.
XLA_FFI_Error* jax_cxl_cuda_ragged(XLA_FFI_CallFrame* frame);
// Any number of operands, each aliased to its result.
XLA_FFI_Error* jax_cxl_cuda_barrier(XLA_FFI_CallFrame* frame);
// One operand; the result, which is not there yet, and a token, which only
// orders what follows.
XLA_FFI_Error* jax_cxl_cuda_start(XLA_FFI_CallFrame* frame);
// The operand of the start, its result, and any number of values that are to be
// computed before; the result is aliased to that of the start.
XLA_FFI_Error* jax_cxl_cuda_done(XLA_FFI_CallFrame* frame);
// A token and any number of values, each aliased to a result: nothing happens,
// but what uses the results comes after the start.
XLA_FFI_Error* jax_cxl_cuda_tie(XLA_FFI_CallFrame* frame);
}

#endif  // JAX_CXL_FFI_CUDA_HANDLERS_H_
