#ifndef JAX_CXL_TABLE_COLUMN_H_
#define JAX_CXL_TABLE_COLUMN_H_

#include <cstddef>
#include <cstdint>
#include <shared_mutex>

#include "cc/pool/coherence/coherence.h"

namespace jax_cxl::table {

// The words of a part of a trained table. Only the process that owns the part
// writes them. The rows of the part change after `begun` has got the number of
// a step, and before `finished` gets it.
struct alignas(128) PartWords {
  uint64_t begun;
  uint64_t unused[7];
  uint64_t finished;
  uint64_t unused_too[7];
};
static_assert(sizeof(PartWords) == 128);

// Rows of a table in mapped memory.
struct Column {
  const std::byte* data = nullptr;
  uint64_t rows = 0;
  uint64_t row_bytes = 0;
  // A trained table: the words of each part. Part i has the rows from
  // i * rows_of_part on. Null: the rows never change, and this host's cache has
  // no old lines of them.
  const PartWords* parts = nullptr;
  uint64_t rows_of_part = 0;
  pool::Coherence coherence{pool::CoherenceMode::kCoherent};
  double timeout_s = 0;  // how long a reader waits for a step to finish
  // GPUs only: becomes 1 if a step did not finish in time.
  uint32_t* stalled = nullptr;

  // Held shared while rows are taken.
  mutable std::shared_mutex in_use;
  bool closed = false;  // guarded by in_use
};

}  // namespace jax_cxl::table

#endif  // JAX_CXL_TABLE_COLUMN_H_
