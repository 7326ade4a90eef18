#ifndef JAX_CXL_STORE_TABLE_ROW_OF_H_
#define JAX_CXL_STORE_TABLE_ROW_OF_H_

#include <cstdint>

namespace jax_cxl::table {

// What a call returns for an id outside of the table. jax_cxl/_table/gather.py
// has the same numbers.
enum class Mode : int32_t {
  kFill = 0,   // the fill value; negative ids count from the end
  kClip = 1,   // the nearest row
  kError = 2,  // an error; negative ids count from the end
};

inline constexpr int64_t kOutside = -1;

constexpr int64_t RowOf(int64_t id, int64_t rows, Mode mode) {
  if (mode == Mode::kClip) {
    if (id >= rows) return rows - 1;  // kOutside without rows
    return id > 0 ? id : 0;
  }
  const int64_t row = id < 0 ? id + rows : id;
  return row >= 0 && row < rows ? row : kOutside;
}

}  // namespace jax_cxl::table

#endif  // JAX_CXL_STORE_TABLE_ROW_OF_H_
