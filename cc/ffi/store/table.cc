#include "cc/ffi/store/table.h"

#include <cstring>
#include <utility>

#include "cc/engine/cpu/huge_pages.h"
#include "cc/ffi/store/chunks.h"
#include "cc/store/memory/registry.h"

namespace jax_cxl::ffi {
namespace {

namespace xffi = xla::ffi;

// Takes all rows of the call, and then returns. If the handler returned a
// future instead, XLA could go on while rows are taken. But XLA would then run
// the rest of the program in a thread of XLA's thread pool. If programs in all
// threads of that pool waited for one another, no thread would be left to take
// rows.
Status TakeAll(xffi::ThreadPool& pool, const TableCall& call) {
  const table::Column& column = *call.column;
  const uint64_t count = call.request.ids.count;
  column.taken->fetch_add(count);
  cpu::PreferHugePages(call.request.output, count * column.row_bytes);
  const auto take = [&](uint64_t begin, uint64_t end) {
    return table::TakeRows(column, call.request, begin, end);
  };
  const Status taken =
      RunChunks(pool, count, table::IdsOfChunk(column), std::move(take));
  const Status intact = column.CheckIntact();
  return intact.ok() ? taken : intact;
}

xffi::Error Take(xffi::ThreadPool pool, int64_t table, int32_t column,
                 int32_t mode, xffi::Span<const uint8_t> fill,
                 xffi::AnyBuffer ids, xffi::Result<xffi::AnyBuffer> output) {
  return OnTable({table, column, mode, fill}, ids, *output,
                 [&](const TableCall& call) { return TakeAll(pool, call); });
}

}  // namespace

Result<TableCall> TableCall::Of(const TableAttributes& attributes,
                                const xffi::AnyBuffer& ids,
                                xffi::AnyBuffer& output) {
  TableCall call;
  call.column = pool::Registry<table::Column>::Get().Find(
      {attributes.table, attributes.column});
  if (call.column == nullptr)
    return Error(Code::kFailedPrecondition,
                 "take: this process has not opened the table of the program, "
                 "or has closed it; call jax_cxl.Table.open first");
  const xffi::DataType type = ids.element_type();
  const bool wide = type == xffi::DataType::S64;
  const uint64_t count = ids.element_count();
  const uint64_t element = attributes.fill.size();
  if (!(wide || type == xffi::DataType::S32) || element == 0 ||
      call.request.fill.size() % element != 0 || attributes.mode < 0 ||
      attributes.mode > 2 || call.column->row_bytes % element != 0 ||
      output.size_bytes() != count * call.column->row_bytes)
    return NotLowered("take");
  call.request.ids = {.data = ids.untyped_data(), .count = count, .wide = wide};
  call.request.mode = static_cast<table::Mode>(attributes.mode);
  for (size_t at = 0; at < call.request.fill.size(); at += element)
    std::memcpy(call.request.fill.data() + at, attributes.fill.begin(),
                element);
  call.request.output = static_cast<std::byte*>(output.untyped_data());
  return call;
}

}  // namespace jax_cxl::ffi

XLA_FFI_DEFINE_HANDLER_SYMBOL(
    jax_cxl_table, jax_cxl::ffi::Take,
    jax_cxl::ffi::BindTable(xla::ffi::Ffi::Bind().Ctx<xla::ffi::ThreadPool>()));
