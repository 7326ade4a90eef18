#ifndef JAX_CXL_FFI_CUDA_STORE_HANDLERS_H_
#define JAX_CXL_FFI_CUDA_STORE_HANDLERS_H_

#include "xla/ffi/api/c_api.h"

// XLA custom-call handlers for platform "CUDA" that move data of a store. They
// enqueue on XLA's stream and return. They have no state, and work without a
// job. None is marked as compatible with command buffers (CUDA graphs).
extern "C" {
// Takes rows of a table (cc/ffi/store/table.h). In mode "error", the handler
// waits for the GPU, because it must fail if an id is outside of the table.
XLA_FFI_Error* jax_cxl_cuda_table(XLA_FFI_CallFrame* frame);
// The start and the done of a call that takes rows, like those of a collective.
XLA_FFI_Error* jax_cxl_cuda_start_table(XLA_FFI_CallFrame* frame);
XLA_FFI_Error* jax_cxl_cuda_table_done(XLA_FFI_CallFrame* frame);
// Put and get residuals (cc/ffi/store/residuals.h).
XLA_FFI_Error* jax_cxl_cuda_put_residual(XLA_FFI_CallFrame* frame);
XLA_FFI_Error* jax_cxl_cuda_get_residual(XLA_FFI_CallFrame* frame);
}

#endif  // JAX_CXL_FFI_CUDA_STORE_HANDLERS_H_
