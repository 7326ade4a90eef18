#include "cc/ffi/row_buffers.h"

#include <vector>

#include "cc/ffi/errors/errors.h"
#include "cc/plan/plan.h"
#include "cc/plan/slices.h"

namespace jax_cxl::ffi {
namespace {

namespace xffi = xla::ffi;

// Returns true if a buffer holds `count` elements of `type`.
bool Holds(const xffi::AnyBuffer& buffer, xffi::DataType type, uint64_t count) {
  return buffer.element_type() == type && buffer.element_count() == count;
}

template <typename T>
const T* DataOf(const xffi::AnyBuffer& buffer) {
  return static_cast<const T*>(buffer.untyped_data());
}

// Sets the members of `buffers` for all operands except the first one, which
// holds the rows. Returns false if these operands do not match the lowering.
bool SetIndices(const plan::Rows& rows, const xffi::RemainingArgs& arguments,
                RowBuffers* buffers) {
  auto indices = arguments.get<xffi::AnyBuffer>(1);
  if (!indices || arguments.size() > 3 ||
      !Holds(*indices, xffi::DataType::S32, rows.taken))
    return false;
  buffers->operands.indices = DataOf<int32_t>(*indices);
  if (arguments.size() == 2) return true;
  auto published = arguments.get<xffi::AnyBuffer>(2);
  if (!published || published->size_bytes() != rows.table) return false;
  buffers->operands.published = DataOf<uint8_t>(*published);
  return true;
}

bool SetSlices(const plan::Request& request,
               const xffi::RemainingArgs& arguments, RowBuffers* buffers) {
  auto before = arguments.get<xffi::AnyBuffer>(1);
  auto slices = arguments.get<xffi::AnyBuffer>(2);
  if (!before || !slices || arguments.size() != 3 ||
      before->size_bytes() != plan::OutputBytes(request))
    return false;
  const uint64_t entries = plan::SliceEntries(request);
  if (!Holds(*slices, xffi::DataType::S32, entries) &&
      !Holds(*slices, xffi::DataType::S64, entries))
    return false;
  buffers->before = DataOf<std::byte>(*before);
  buffers->operands.slices = slices->untyped_data();
  buffers->operands.slice_entry_bytes =
      static_cast<uint32_t>(slices->size_bytes() / entries);
  return true;
}

}  // namespace

Result<RowBuffers> RowBuffers::Of(const CallSite& site,
                                  const xffi::RemainingArgs& arguments,
                                  const xffi::RemainingRets& results,
                                  uint64_t scratch_bytes) {
  const plan::Request& request = site.prototype().request;
  const auto wrong = [&] { return NotLowered(site.prototype().name); };
  auto input = arguments.get<xffi::AnyBuffer>(0);
  auto output = results.get<xffi::AnyBuffer>(0);
  if (!input || !output || !plan::MovesRows(request.op)) return wrong();
  CXL_RETURN_IF_ERROR(
      site.CheckBuffers(input->size_bytes(), (*output)->size_bytes()));
  RowBuffers buffers;
  buffers.input = DataOf<std::byte>(*input);
  buffers.output = static_cast<std::byte*>((*output)->untyped_data());
  if (request.op == plan::Op::kTakeRows
          ? !SetIndices(request.rows, arguments, &buffers)
          : !SetSlices(request, arguments, &buffers))
    return wrong();
  if (scratch_bytes == 0) return buffers;
  auto scratch = results.get<xffi::AnyBuffer>(1);
  if (!scratch || (*scratch)->size_bytes() < scratch_bytes) return wrong();
  buffers.operands.scratch = (*scratch)->untyped_data();
  return buffers;
}

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
