#ifndef JAX_CXL_ENGINE_CPU_TAKEN_ROWS_H_
#define JAX_CXL_ENGINE_CPU_TAKEN_ROWS_H_

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "cc/plan/plan.h"

namespace jax_cxl::cpu {

// Consecutive rows of a rank's block that are copied to consecutive rows of the
// output.
struct RowRun {
  uint64_t from = 0;  // row of the rank's block
  uint64_t to = 0;    // row of the output
  uint64_t rows = 0;
};

// The rows that one rank takes in a take_rows, and the rows of its own block
// that its peers may take. Rows that are in no run are neither copied nor put
// into slots.
//
// Immutable and thread-safe.
class TakenRows {
 public:
  // `runs[r]` are the rows taken from rank r's block, in any order. `published`
  // are the rows of this rank's own block that it puts into slots (`to` is
  // unused).
  TakenRows(uint64_t row_bytes, uint64_t table_rows,
            std::vector<std::vector<RowRun>> runs,
            std::vector<RowRun> published);

  // The blocks of all ranks, in rank order, form one table. Row i of the output
  // is row indices[i] of the table. An index out of range takes nothing.
  // `published` has an entry for each row of this rank's block. It is empty if
  // all rows are published.
  static TakenRows Of(const plan::Request& request,
                      std::span<const int32_t> indices,
                      std::span<const uint8_t> published);

  uint64_t row_bytes() const { return row_bytes_; }
  uint64_t taken_bytes() const { return taken_bytes_; }

  // Visits the taken rows in bytes [at, at + bytes) of the table, which must
  // lie in one rank's block: visit(offset from `at`, offset in the output,
  // bytes).
  template <typename Visit>
  void ForEachTaken(uint64_t at, uint64_t bytes, const Visit& visit) const {
    const uint64_t rank = at / block_bytes_;
    ForEach(by_rank_[rank], at - rank * block_bytes_, bytes, visit);
  }

  // Visits the published rows in bytes [at, at + bytes) of this rank's block:
  // visit(offset from `at`, unused, bytes).
  template <typename Visit>
  void ForEachPublished(uint64_t at, uint64_t bytes, const Visit& visit) const {
    ForEach(published_, at, bytes, visit);
  }

 private:
  // Sorted by the first row. `ends[i]` is the largest end of runs [0, i].
  struct Runs {
    std::vector<RowRun> runs;
    std::vector<uint64_t> ends;
  };
  static Runs Sorted(std::vector<RowRun> runs);

  template <typename Visit>
  void ForEach(const Runs& sorted, uint64_t at, uint64_t bytes,
               const Visit& visit) const {
    const uint64_t first_row = at / row_bytes_;
    const auto end =
        std::upper_bound(sorted.ends.begin(), sorted.ends.end(), first_row);
    for (size_t i = end - sorted.ends.begin(); i < sorted.runs.size(); ++i) {
      const RowRun& run = sorted.runs[i];
      const uint64_t begin = run.from * row_bytes_;
      if (begin >= at + bytes) break;
      const uint64_t from = std::max(begin, at);
      const uint64_t to = std::min(begin + run.rows * row_bytes_, at + bytes);
      if (from < to)
        visit(from - at, run.to * row_bytes_ + (from - begin), to - from);
    }
  }

  uint64_t row_bytes_;
  uint64_t block_bytes_;
  uint64_t taken_bytes_ = 0;
  std::vector<Runs> by_rank_;
  Runs published_;
};

}  // namespace jax_cxl::cpu

#endif  // JAX_CXL_ENGINE_CPU_TAKEN_ROWS_H_
