#ifndef JAX_CXL_FFI_SLICE_CHECK_H_
#define JAX_CXL_FFI_SLICE_CHECK_H_

#include <cstddef>
#include <cstdint>

#include "cc/base/status.h"
#include "xla/ffi/api/ffi.h"

namespace jax_cxl::ffi {

// Checks the tables of slices of a ragged_all_to_all that moves its rows by
// other means than the pool (jax_cxl/_lowering/primitives/check_slices.py).
//
// `tables` is a buffer of shape (..., ranks, 4, entries). It holds the tables
// of all ranks of a group, for any number of groups. `data` is the contents of
// the buffer, in the memory of the host. `rows` has the members of plan::Rows
// up to `elements`, in their order.
//
// Fails with kInvalidArgument if a slice is wrong, and with kInternal if the
// buffer does not have the shape for which the call was lowered.
Status CheckSliceTables(const xla::ffi::AnyBuffer& tables,
                        xla::ffi::Span<const int64_t> rows,
                        const std::byte* data);

}  // namespace jax_cxl::ffi

#endif  // JAX_CXL_FFI_SLICE_CHECK_H_
