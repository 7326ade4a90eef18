#ifndef JAX_CXL_FFI_STORE_TABLE_H_
#define JAX_CXL_FFI_STORE_TABLE_H_

#include <cstdint>
#include <memory>
#include <shared_mutex>
#include <utility>

#include "cc/base/status.h"
#include "cc/ffi/errors/errors.h"
#include "cc/store/table/column.h"
#include "cc/store/table/take.h"
#include "xla/ffi/api/ffi.h"

namespace jax_cxl::ffi {

// The attributes of a call that takes rows of a table. jax_cxl/_table/gather.py
// makes and explains them.
struct TableAttributes {
  int64_t table;   // the table's identity
  int32_t column;  // the column's number
  int32_t mode;
  xla::ffi::Span<const uint8_t> fill;
};

// A call that takes rows of a table, decoded and checked.
struct TableCall {
  std::shared_ptr<const table::Column> column;
  table::Request request;

  // Fails with kFailedPrecondition if the table is not open, and with kInternal
  // if the buffers are not those for which the call was lowered.
  static Result<TableCall> Of(const TableAttributes& attributes,
                              const xla::ffi::AnyBuffer& ids,
                              xla::ffi::AnyBuffer& output);
};

// Decodes a call, and calls `run` with it, unless memory of the table was lost.
// The table stays open while `run` uses it. Converts errors to those that
// handlers return to XLA.
template <typename Run>
xla::ffi::Error OnTable(const TableAttributes& attributes,
                        const xla::ffi::AnyBuffer& ids,
                        xla::ffi::AnyBuffer& output, const Run& run) {
  const Result<TableCall> call = TableCall::Of(attributes, ids, output);
  if (!call.ok()) return ToFfiError(call.status());
  std::shared_lock in_use(call->column->in_use);
  if (call->column->closed)
    return ToFfiError(Error(Code::kFailedPrecondition,
                            "take: the table was closed; open it again with "
                            "jax_cxl.Table.open"));
  const Status intact = call->column->CheckIntact();
  return ToFfiError(intact.ok() ? run(*call) : intact);
}

// Adds the attributes and buffers of the call to `binding`, which has bound the
// parameters that depend on the platform.
template <typename Binding>
auto BindTable(Binding binding) {
  return std::move(binding)
      .template Attr<int64_t>("table")
      .template Attr<int32_t>("column")
      .template Attr<int32_t>("mode")
      .template Attr<xla::ffi::Span<const uint8_t>>("fill")
      .template Arg<xla::ffi::AnyBuffer>()
      .template Ret<xla::ffi::AnyBuffer>();
}

}  // namespace jax_cxl::ffi

#endif  // JAX_CXL_FFI_STORE_TABLE_H_
