#ifndef JAX_CXL_ENGINE_CPU_TAKEN_ROWS_H_
#define JAX_CXL_ENGINE_CPU_TAKEN_ROWS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "cc/base/status.h"
#include "cc/plan/plan.h"

namespace jax_cxl::cpu {

// Consecutive rows of a rank's block that are copied to consecutive rows of the
// output.
struct RowRun {
  uint64_t from = 0;  // row of the rank's block
  uint64_t to = 0;    // row of the output
  uint64_t rows = 0;
};

// The rows that one rank takes in a take_rows or a ragged_all_to_all, and the
// rows of its own block that its peers may take. All other rows are neither
// copied nor put into slots.
//
// In a ragged_all_to_all, the rank knows what it takes only after the tables of
// slices of all ranks have arrived. Steps of the plan move these tables
// (plan::Rows).
//
// Not thread-safe.
class TakenRows {
 public:
  // `runs[r]` are the rows taken from rank r's block, in any order. `published`
  // are the rows of this rank's own block that it puts into slots (in these
  // runs, `to` is unused).
  TakenRows(uint64_t row_bytes, uint64_t table_rows,
            std::vector<std::vector<RowRun>> runs,
            std::vector<RowRun> published);

  // Makes the rows of a take_rows. The blocks of all ranks, in rank order, form
  // one table. Row i of the output is row indices[i] of the table. An index out
  // of range takes nothing. `published` has an entry for each row of this
  // rank's block. It is empty if all rows are published.
  static TakenRows Of(const plan::Request& request,
                      std::span<const int32_t> indices,
                      std::span<const uint8_t> published);

  // Makes the rows of a ragged_all_to_all. `table` is this rank's table of
  // slices (cc/plan/slices.h).
  static TakenRows OfSlices(const plan::Request& request,
                            std::span<const int64_t> table);

  // Returns OK once the rows that `step` takes are known. For a
  // ragged_all_to_all, the first call after all tables have arrived also checks
  // the tables, and fails with kInvalidArgument if they are wrong.
  Status ReadyFor(const plan::Step& step);

  // Most copies have at least this many consecutive bytes.
  uint64_t copy_bytes() const { return copy_bytes_; }
  uint64_t taken_bytes() const { return taken_bytes_; }
  uint64_t published_bytes() const { return published_bytes_; }

  // For a step that is a copy or a get, which writes rows of one rank's block
  // to `output`, or a table of slices to the tables of `rows`. Calls
  // visit(offset, destination, bytes) for each run of taken rows. Calls it once
  // for all bytes if they are another rank's table, or if `rows` is null. The
  // offset counts from the step's first byte.
  template <typename Visit>
  static void ForEachTaken(TakenRows* rows, const plan::Step& step,
                           std::byte* output, const Visit& visit) {
    if (rows == nullptr)
      return visit(uint64_t{0}, output + step.to, step.bytes);
    if (std::byte* table = rows->TableAtOutput(step.to)) {
      if (step.kind == plan::StepKind::kCopy) return;  // own table: in place
      return visit(uint64_t{0}, table, step.bytes);
    }
    const uint64_t rank = step.to / rows->block_bytes_;
    rows->ForEach(rows->by_rank_[rank], step.to - rank * rows->block_bytes_,
                  step.bytes, [&](uint64_t at, uint64_t to, uint64_t bytes) {
                    visit(at, output + to, bytes);
                  });
  }

  // For a step that is a put, which reads rows from `source`, or this rank's
  // table of slices. Calls visit(offset, source, bytes) for each run of
  // published rows. Calls it once for all bytes if they are a table, or if
  // `rows` is null. The offset counts from the step's first byte.
  template <typename Visit>
  static void ForEachPublished(const TakenRows* rows, const plan::Step& step,
                               const std::byte* source, const Visit& visit) {
    if (rows == nullptr) return visit(uint64_t{0}, source, step.bytes);
    if (const std::byte* table = rows->TableAtInput(step.from))
      return visit(uint64_t{0}, table, step.bytes);
    rows->ForEach(rows->published_, step.from, step.bytes,
                  [&](uint64_t at, uint64_t /*to*/, uint64_t bytes) {
                    visit(at, source + at, bytes);
                  });
  }

 private:
  // In the plan of a ragged_all_to_all, the tables of slices come after the
  // rows of the input and of the output. Return the address of a byte of the
  // tables, or null if the offset is in the rows. TableAtInput takes an
  // offset in the input, and TableAtOutput an offset in the output.
  const std::byte* TableAtInput(uint64_t from) const {
    if (tables_.empty() || from < block_bytes_) return nullptr;
    const uint64_t rank = request_.rank, bytes = request_.rows.slice_bytes;
    return std::as_bytes(std::span(tables_)).data() + rank * bytes +
           (from - block_bytes_);
  }
  std::byte* TableAtOutput(uint64_t to) {
    const uint64_t rows_end = block_bytes_ * request_.num_ranks;
    if (tables_.empty() || to < rows_end) return nullptr;
    return std::as_writable_bytes(std::span(tables_)).data() + (to - rows_end);
  }

  // Runs sorted by their first row in the block. `ends[i]` is the largest end
  // of runs [0, i].
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
  uint64_t copy_bytes_;
  uint64_t taken_bytes_ = 0;
  uint64_t published_bytes_ = 0;
  std::vector<Runs> by_rank_;
  Runs published_;
  // For a ragged_all_to_all: its sizes, and the tables of all ranks.
  plan::Request request_;
  std::vector<int64_t> tables_;
  bool ready_ = true;
};

// Fills with zeros the rows of a take_rows' output whose index is out of range.
void ZeroRows(const plan::Request& request, std::span<const int32_t> indices,
              std::byte* output);

}  // namespace jax_cxl::cpu

#endif  // JAX_CXL_ENGINE_CPU_TAKEN_ROWS_H_
