#include "cc/engine/cpu/taken_rows.h"

#include <utility>

namespace jax_cxl::cpu {
namespace {

// Adds a row. It may extend the last run.
void Add(uint64_t from, uint64_t to, std::vector<RowRun>& runs) {
  if (!runs.empty()) {
    RowRun& last = runs.back();
    if (last.from + last.rows == from && last.to + last.rows == to) {
      ++last.rows;
      return;
    }
  }
  runs.push_back({from, to, 1});
}

std::vector<RowRun> PublishedRuns(uint64_t rows,
                                  std::span<const uint8_t> published) {
  if (published.empty()) return {{0, 0, rows}};
  std::vector<RowRun> runs;
  for (uint64_t row = 0; row < rows; ++row)
    if (published[row] != 0) Add(row, row, runs);
  return runs;
}

}  // namespace

TakenRows::TakenRows(uint64_t row_bytes, uint64_t table_rows,
                     std::vector<std::vector<RowRun>> runs,
                     std::vector<RowRun> published)
    : row_bytes_(row_bytes),
      block_bytes_(row_bytes * table_rows),
      published_(Sorted(std::move(published))) {
  for (std::vector<RowRun>& of_rank : runs) {
    for (const RowRun& run : of_rank) taken_bytes_ += run.rows * row_bytes;
    by_rank_.push_back(Sorted(std::move(of_rank)));
  }
}

TakenRows::Runs TakenRows::Sorted(std::vector<RowRun> runs) {
  if (!std::ranges::is_sorted(runs, {}, &RowRun::from))
    std::ranges::stable_sort(runs, {}, &RowRun::from);
  Runs sorted;
  sorted.ends.reserve(runs.size());
  uint64_t end = 0;
  for (const RowRun& run : runs)
    sorted.ends.push_back(end = std::max(end, run.from + run.rows));
  sorted.runs = std::move(runs);
  return sorted;
}

TakenRows TakenRows::Of(const plan::Request& request,
                        std::span<const int32_t> indices,
                        std::span<const uint8_t> published) {
  const uint64_t rows = request.rows.table, n = request.num_ranks;
  // A counting sort: first[g + 1] becomes the number of indices up to g.
  std::vector<uint32_t> first(n * rows + 1);
  auto in_table = [&](int32_t index) {
    return index >= 0 && static_cast<uint64_t>(index) < n * rows;
  };
  for (int32_t index : indices)
    if (in_table(index)) ++first[index + 1];
  for (uint64_t g = 0; g < n * rows; ++g) first[g + 1] += first[g];
  std::vector<uint32_t> places(first.back());
  for (uint32_t place = 0; place < indices.size(); ++place)
    if (in_table(indices[place])) places[first[indices[place]]++] = place;
  // Now first[g] is the end of the places of index g.
  std::vector<std::vector<RowRun>> runs(n);
  uint32_t next = 0;
  for (uint64_t g = 0; g < n * rows; ++g)
    for (; next < first[g]; ++next) Add(g % rows, places[next], runs[g / rows]);
  const uint64_t row_bytes = request.count * request.element_bytes / rows;
  return TakenRows(row_bytes, rows, std::move(runs),
                   PublishedRuns(rows, published));
}

}  // namespace jax_cxl::cpu
