#ifndef JAX_CXL_FFI_CUDA_HANDLERS_H_
#define JAX_CXL_FFI_CUDA_HANDLERS_H_

#include "xla/ffi/api/c_api.h"

// XLA custom-call handlers of collectives for platform "CUDA". They enqueue on
// XLA's stream and return. All except done, tie and check_slices share one
// Instantiate stage, whose state is a CallSite. No handler is marked as
// compatible with command buffers (CUDA graphs), because a call's number is an
// argument of its kernel, and a replay would repeat it.
extern "C" {
XLA_FFI_Error* jax_cxl_cuda_instantiate(XLA_FFI_CallFrame* frame);
// One operand, one result.
XLA_FFI_Error* jax_cxl_cuda_collective(XLA_FFI_CallFrame* frame);
// take_rows and ragged_all_to_all: see row_buffers.h.
XLA_FFI_Error* jax_cxl_cuda_rows(XLA_FFI_CallFrame* frame);
// Any number of operands, each aliased to its result.
XLA_FFI_Error* jax_cxl_cuda_barrier(XLA_FFI_CallFrame* frame);
// Starts a call. It takes one operand. The results are the call's result, which
// is not complete yet, and a token, which only orders later operations.
XLA_FFI_Error* jax_cxl_cuda_start(XLA_FFI_CallFrame* frame);
// Does the same for take_rows, with scratch memory between the two results.
XLA_FFI_Error* jax_cxl_cuda_start_rows(XLA_FFI_CallFrame* frame);
// Ends a call. It takes the first operand of the start, the result of the
// start, and any number of other values. Some of these values are other buffers
// of the start, which `done` keeps alive. Others must be computed before `done`
// runs. The result of `done` is aliased to the result of the start.
XLA_FFI_Error* jax_cxl_cuda_done(XLA_FFI_CallFrame* frame);
// Takes a token and any number of values, each aliased to a result. It does
// nothing at run time, but it orders the users of its results after the start.
XLA_FFI_Error* jax_cxl_cuda_tie(XLA_FFI_CallFrame* frame);
// Takes tables (slice_check.h) and any number of values, each aliased to its
// result. It waits for the tables.
XLA_FFI_Error* jax_cxl_cuda_check_slices(XLA_FFI_CallFrame* frame);
}

#endif  // JAX_CXL_FFI_CUDA_HANDLERS_H_
