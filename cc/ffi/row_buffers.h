#ifndef JAX_CXL_FFI_ROW_BUFFERS_H_
#define JAX_CXL_FFI_ROW_BUFFERS_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "cc/base/status.h"
#include "cc/ffi/call/call_site.h"
#include "xla/ffi/api/ffi.h"

namespace jax_cxl::ffi {

// The buffers of an operation that moves rows, in the memory of the host or of
// a GPU. Operands and results:
//
//   take_rows          rows, indices, and optionally which of its rows a rank
//                      publishes -> the taken rows
//   ragged_all_to_all  rows, output, table of slices -> the output with the
//                      received rows
//
// On GPUs there is a second result: scratch memory.
struct RowBuffers {
  const std::byte* input = nullptr;
  std::byte* output = nullptr;
  // take_rows
  std::span<const int32_t> indices;
  std::span<const uint8_t> published;  // empty: all rows
  // For a ragged_all_to_all: the output's values before the call, and the
  // table, which has 4- or 8-byte integers.
  const std::byte* before = nullptr;
  std::span<const std::byte> slices;
  uint32_t slice_entry_bytes = 0;
  std::byte* scratch = nullptr;

  // Fails with kInternal if the buffers are not those of `site`. Needs
  // `scratch_bytes` bytes of scratch memory (0: no such result).
  static Result<RowBuffers> Of(const CallSite& site,
                               const xla::ffi::RemainingArgs& arguments,
                               const xla::ffi::RemainingRets& results,
                               uint64_t scratch_bytes);
};

}  // namespace jax_cxl::ffi

#endif  // JAX_CXL_FFI_ROW_BUFFERS_H_
