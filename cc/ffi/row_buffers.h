#ifndef JAX_CXL_FFI_ROW_BUFFERS_H_
#define JAX_CXL_FFI_ROW_BUFFERS_H_

#include <cstddef>
#include <cstdint>

#include "cc/base/status.h"
#include "cc/comm/call/call.h"
#include "cc/ffi/call/call_site.h"
#include "xla/ffi/api/ffi.h"

namespace jax_cxl::ffi {

// The buffers of an operation that moves rows, in the memory of the host or of
// a GPU. Operands and results:
//
//   take_rows          this rank's rows, the indices of the rows to take, and
//                      optionally a flag for each of this rank's rows: whether
//                      it is published -> the taken rows
//   ragged_all_to_all  this rank's rows, the output before the call, the table
//                      of slices -> the output with the received rows
//
// On GPUs both have a second result: scratch memory.
struct RowBuffers {
  const std::byte* input = nullptr;
  std::byte* output = nullptr;
  const std::byte* before = nullptr;  // for a ragged_all_to_all
  comm::RowOperands operands;

  // Finds the buffers of a call of `site`. Fails with kInternal if their sizes
  // or types do not match the lowering of the call, or if the scratch memory
  // has less than `scratch_bytes` bytes. If `scratch_bytes` is 0, the call has
  // no scratch memory.
  static Result<RowBuffers> Of(const CallSite& site,
                               const xla::ffi::RemainingArgs& arguments,
                               const xla::ffi::RemainingRets& results,
                               uint64_t scratch_bytes);
};

// Checks the tables of slices of a ragged_all_to_all that moves its rows by
// other means than the pool (jax_cxl/ops/ragged_all_to_all.py).
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

#endif  // JAX_CXL_FFI_ROW_BUFFERS_H_
