#include "cc/store/table/column.h"

#include <mutex>

#include "cc/store/memory/persistent_memory.h"

namespace jax_cxl::table {

Status Column::CheckIntact() const {
  return memory == nullptr ? OkStatus() : memory->CheckIntact(0);
}

std::atomic<uint64_t>* RowsTaken(int64_t table) {
  static auto& mutex = *new std::mutex;
  static auto& taken = *new std::map<int64_t, std::atomic<uint64_t>>;
  std::lock_guard lock(mutex);
  return &taken[table];
}

}  // namespace jax_cxl::table
