#ifndef JAX_CXL_STORE_TABLE_WRITE_H_
#define JAX_CXL_STORE_TABLE_WRITE_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "cc/base/status.h"
#include "cc/store/table/column.h"

namespace jax_cxl::table {

// Overwrites rows of a trained table, and publishes them. The caller owns the
// parts of these rows, and has already stored the step in the words `begun` of
// these parts. Fails with kInvalidArgument, before it changes anything, if a
// row is outside of the table or `data` has the wrong size.
Status WriteRows(const Column& column, std::span<const int64_t> rows,
                 std::span<const std::byte> data);

}  // namespace jax_cxl::table

#endif  // JAX_CXL_STORE_TABLE_WRITE_H_
