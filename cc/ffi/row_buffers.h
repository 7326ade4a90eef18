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

}  // namespace jax_cxl::ffi

#endif  // JAX_CXL_FFI_ROW_BUFFERS_H_
