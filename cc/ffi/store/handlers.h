#ifndef JAX_CXL_FFI_STORE_HANDLERS_H_
#define JAX_CXL_FFI_STORE_HANDLERS_H_

#include "xla/ffi/api/c_api.h"

// XLA custom-call handlers for platform "cpu" that move data of a store. They
// have no state.
extern "C" {
// Takes rows of a table (table.h).
XLA_FFI_Error* jax_cxl_table(XLA_FFI_CallFrame* frame);
// Put and get residuals (residuals.h).
XLA_FFI_Error* jax_cxl_put_residual(XLA_FFI_CallFrame* frame);
XLA_FFI_Error* jax_cxl_get_residual(XLA_FFI_CallFrame* frame);
// Joins any number of operands. Their bytes follow one another in the result.
XLA_FFI_Error* jax_cxl_join(XLA_FFI_CallFrame* frame);
}

#endif  // JAX_CXL_FFI_STORE_HANDLERS_H_
