#include "cc/ffi/slice_check.h"

#include <vector>

#include "cc/ffi/errors/errors.h"
#include "cc/plan/plan.h"
#include "cc/plan/slices.h"

namespace jax_cxl::ffi {

namespace xffi = xla::ffi;

Status CheckSliceTables(const xffi::AnyBuffer& tables,
                        xffi::Span<const int64_t> rows, const std::byte* data) {
  const auto dimensions = tables.dimensions();
  const size_t n = dimensions.size();
  if (n < 3 || dimensions[n - 2] != 4 || rows.size() != 4 || rows[3] < 1)
    return NotLowered("check_slices");
  if (tables.element_count() == 0) return OkStatus();
  const plan::Rows sizes = {
      static_cast<uint64_t>(rows[0]), static_cast<uint64_t>(rows[1]),
      static_cast<uint64_t>(rows[2]), static_cast<uint64_t>(rows[3])};
  const auto ranks = static_cast<uint64_t>(dimensions[n - 3]);
  if (dimensions[n - 1] != static_cast<int64_t>(ranks * sizes.slices))
    return NotLowered("check_slices");
  const auto entry_bytes =
      static_cast<uint32_t>(tables.size_bytes() / tables.element_count());
  const std::vector<int64_t> wide =
      plan::WideSlices({data, tables.size_bytes()}, entry_bytes);
  const size_t group = ranks * 4 * ranks * sizes.slices;
  for (size_t at = 0; at < wide.size(); at += group)
    CXL_RETURN_IF_ERROR(plan::CheckSlices({&wide[at], ranks, sizes}));
  return OkStatus();
}

}  // namespace jax_cxl::ffi
