#include "cc/store/table/column.h"

#include "cc/store/memory/persistent_memory.h"

namespace jax_cxl::table {

Status Column::CheckIntact() const {
  return memory == nullptr ? OkStatus() : memory->CheckIntact(0);
}

}  // namespace jax_cxl::table
