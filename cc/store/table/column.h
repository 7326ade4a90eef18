#ifndef JAX_CXL_STORE_TABLE_COLUMN_H_
#define JAX_CXL_STORE_TABLE_COLUMN_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <shared_mutex>
#include <span>

#include "cc/base/status.h"
#include "cc/pool/coherence/coherence.h"

namespace jax_cxl::pool {
class PersistentMemory;
}

namespace jax_cxl::table {

class DeviceCache;

// The words of a part of a trained table. Only the process that owns the part
// writes them. In each step it stores the step's number in `begun`, then
// changes rows of the part, then stores the number in `finished`.
struct alignas(128) PartWords {
  uint64_t begun;
  uint64_t unused[7];
  uint64_t finished;
  uint64_t unused_too[7];
};
static_assert(sizeof(PartWords) == 128);

// Where the rows of a column lie, which never changes.
struct ColumnPlace {
  const std::byte* data = nullptr;
  // The memory that has the rows, on its only device. Null in tests.
  const pool::PersistentMemory* memory = nullptr;
  uint64_t rows = 0;
  uint64_t row_bytes = 0;
  // The words of each part of a trained table. Part i has the rows from i *
  // rows_of_part on. Null if the table is not trained: then its rows never
  // change, and this host's cache has no old lines of the rows.
  const PartWords* parts = nullptr;
  uint64_t rows_of_part = 0;
  pool::Coherence coherence{pool::CoherenceMode::kCoherent};
  double timeout_s = 0;  // how long a reader waits for a step to finish
  // How many rows of the table this process has taken: RowsTaken.
  std::atomic<uint64_t>* taken = nullptr;
};

// One column of a table: rows of equal size in mapped memory.
struct Column : ColumnPlace {
  Column() = default;
  explicit Column(const ColumnPlace& place) : ColumnPlace(place) {}

  // GPUs only: a kernel sets this word to 1 if a step has not finished within
  // timeout_s.
  uint32_t* stalled = nullptr;

  // A call holds this lock in shared mode while it takes rows. To change the
  // column or its caches, hold the lock exclusively.
  mutable std::shared_mutex in_use;
  bool closed = false;  // guarded by in_use
  // The caches by GPU. Guarded by in_use.
  std::map<int, std::shared_ptr<DeviceCache>> caches;

  // Fails with kDataLoss if the file of the table was cut short, deleted or
  // replaced, or its memory failed. If a host calls it after it has read rows,
  // it knows that these rows are not zeros in place of lost ones.
  Status CheckIntact() const;
};

// Overwrites rows of a trained table, and publishes them. The caller owns the
// parts of these rows, and has already stored the step in the words `begun` of
// these parts. Fails with kInvalidArgument, before it changes anything, if a
// row is outside of the table or `data` has the wrong size. The caller holds
// `column.in_use`.
Status WriteRows(const Column& column, std::span<const int64_t> rows,
                 std::span<const std::byte> data);

// Returns the error for `rows` rows that are not in a table, or whose bytes do
// not fit into a buffer exactly.
Status SizeError(uint64_t rows);

// Returns the word that counts the rows that this process takes of the table
// with this identity. The word is never destroyed.
std::atomic<uint64_t>* RowsTaken(int64_t table);

}  // namespace jax_cxl::table

#endif  // JAX_CXL_STORE_TABLE_COLUMN_H_
