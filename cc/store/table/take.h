#ifndef JAX_CXL_STORE_TABLE_TAKE_H_
#define JAX_CXL_STORE_TABLE_TAKE_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "cc/base/status.h"
#include "cc/store/table/column.h"
#include "cc/store/table/lookup.h"

namespace jax_cxl::table {

struct Ids {
  const void* data = nullptr;
  uint64_t count = 0;
  bool wide = false;  // int64_t instead of int32_t
};

struct Request {
  Ids ids;
  Mode mode = Mode::kFill;
  // The fill value: one element, repeated. A row has a whole number of
  // elements.
  std::array<std::byte, 16> fill = {};
  std::byte* output = nullptr;
};

// Copies the rows of ids [begin, end) of the request to the output. The caller
// holds `column.in_use`.
//
// In mode kError, fails with kInvalidArgument if an id is outside of the table.
// Fails with kDeadlineExceeded if a row of a trained table is being changed by
// a step that does not finish in time.
Status TakeRows(const Column& column, const Request& request, uint64_t begin,
                uint64_t end);

// Returns how many ids a thread takes at a time.
uint64_t IdsOfChunk(const Column& column);

// Returns the error for an id outside of a table. `id` is the id as text.
Status OutsideError(const Column& column, const std::string& id,
                    uint64_t position);

}  // namespace jax_cxl::table

#endif  // JAX_CXL_STORE_TABLE_TAKE_H_
