#ifndef JAX_CXL_FFI_CUDA_HANDLERS_H_
#define JAX_CXL_FFI_CUDA_HANDLERS_H_

#include "xla/ffi/api/c_api.h"

// XLA custom-call handlers of collectives for platform "CUDA". They enqueue on
// XLA's stream and return. All except done, tie and check_slices share one
// Instantiate stage, whose state is a CallSite.
//
// No handler is marked as compatible with command buffers (CUDA graphs). A
// call's number is an argument of its kernel, so a replay of the graph would
// use the same number again.
extern "C" {
XLA_FFI_Error* jax_cxl_cuda_instantiate(XLA_FFI_CallFrame* frame);
// Executes a collective that has one operand and one result.
XLA_FFI_Error* jax_cxl_cuda_collective(XLA_FFI_CallFrame* frame);
// Executes a take_rows or a ragged_all_to_all. row_buffers.h lists the operands
// and results.
XLA_FFI_Error* jax_cxl_cuda_rows(XLA_FFI_CallFrame* frame);
// Executes a barrier. It takes any number of operands, each aliased to a
// result.
XLA_FFI_Error* jax_cxl_cuda_barrier(XLA_FFI_CallFrame* frame);
// Starts a call that has one operand. The first result is the result of the
// call, but its contents are not complete before the call ends. The second is a
// token, which only orders later operations.
XLA_FFI_Error* jax_cxl_cuda_start(XLA_FFI_CallFrame* frame);
// Starts a take_rows in the same way. It has a third result, scratch memory,
// which comes between the other two.
XLA_FFI_Error* jax_cxl_cuda_start_rows(XLA_FFI_CallFrame* frame);
// Ends a call. It takes the first operand of the start, the first result of the
// start, and any number of other values. Some of these values are other buffers
// of the start, which must stay alive until the call ends. Others are values
// that must be computed before `done` runs. The result of `done` is aliased to
// the first result of the start.
XLA_FFI_Error* jax_cxl_cuda_done(XLA_FFI_CallFrame* frame);
// Takes the token of a start and any number of values, each aliased to a
// result. It does nothing at run time. It only makes XLA run the users of its
// results after the start.
XLA_FFI_Error* jax_cxl_cuda_tie(XLA_FFI_CallFrame* frame);
// Checks the tables of slices in its first operand (slice_check.h), and waits
// for them. Any number of other operands may follow. Each operand is aliased to
// a result.
XLA_FFI_Error* jax_cxl_cuda_check_slices(XLA_FFI_CallFrame* frame);
}

#endif  // JAX_CXL_FFI_CUDA_HANDLERS_H_
