#include "cc/store/table/column.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <mutex>

#include "cc/store/memory/persistent_memory.h"

namespace jax_cxl::table {

Status Column::CheckIntact() const {
  return memory == nullptr ? OkStatus() : memory->CheckIntact(0);
}

Status WriteRows(const Column& column, std::span<const int64_t> rows,
                 std::span<const std::byte> data) {
  const auto outside = [&](int64_t row) {
    return row < 0 || static_cast<uint64_t>(row) >= column.rows;
  };
  if (column.closed || data.size() != rows.size() * column.row_bytes ||
      std::ranges::any_of(rows, outside))
    return SizeError(rows.size());
  // The caller has stored the step in `begun`. With this fence, readers that
  // see a new byte of a row also see this step there.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  const std::byte* from = data.data();
  for (int64_t row : rows) {
    auto* to = const_cast<std::byte*>(column.data) + row * column.row_bytes;
    // This host's cache may have old lines of the row. Writing back such a line
    // would also undo writes to neighboring rows, which another owner may have
    // written in an earlier job.
    column.coherence.AcquirePayload(to, column.row_bytes);
    std::memcpy(to, from, column.row_bytes);
    column.coherence.PublishPayload(to, column.row_bytes);
    from += column.row_bytes;
  }
  return column.CheckIntact();
}

Status SizeError(uint64_t rows) {
  return Error(Code::kInvalidArgument, rows,
               " rows are not rows of this table, or have the wrong size; "
               "please report this to jax_cxl");
}

std::atomic<uint64_t>* RowsTaken(int64_t table) {
  static auto& mutex = *new std::mutex;
  static auto& taken = *new std::map<int64_t, std::atomic<uint64_t>>;
  std::lock_guard lock(mutex);
  return &taken[table];
}

}  // namespace jax_cxl::table
