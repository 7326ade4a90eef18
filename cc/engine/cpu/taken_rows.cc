#include "cc/engine/cpu/taken_rows.h"

#include <cstring>
#include <utility>

#include "cc/plan/slices.h"

namespace jax_cxl::cpu {
namespace {

// Adds a row to the runs: to the last run if the row continues it, or otherwise
// as a new run.
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

// Returns runs that contain each row of `ranges` exactly once. The ranges may
// overlap.
std::vector<RowRun> Union(std::vector<RowRun> ranges) {
  std::ranges::sort(ranges, {}, &RowRun::from);
  std::vector<RowRun> runs;
  for (const RowRun& range : ranges) {
    if (!runs.empty() && range.from <= runs.back().from + runs.back().rows) {
      RowRun& last = runs.back();
      last.rows =
          std::max(last.from + last.rows, range.from + range.rows) - last.from;
    } else {
      runs.push_back({range.from, range.from, range.rows});
    }
  }
  return runs;
}

}  // namespace

TakenRows::TakenRows(uint64_t row_bytes, uint64_t table_rows,
                     std::vector<std::vector<RowRun>> runs,
                     std::vector<RowRun> published)
    : row_bytes_(row_bytes),
      block_bytes_(row_bytes * table_rows),
      copy_bytes_(row_bytes),
      published_(Sorted(std::move(published))) {
  for (const RowRun& run : published_.runs)
    published_bytes_ += run.rows * row_bytes;
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
  // A counting sort by index. `first[g]` becomes the number of indices less
  // than g: the beginning of the places of index g in `places`.
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
  // The loop above has moved first[g] to the end of the places of index g.
  std::vector<std::vector<RowRun>> runs(n);
  uint32_t next = 0;
  for (uint64_t g = 0; g < n * rows; ++g)
    for (; next < first[g]; ++next) Add(g % rows, places[next], runs[g / rows]);
  const uint64_t row_bytes = request.count * request.element_bytes / rows;
  std::vector<RowRun> own;
  if (published.empty()) own.push_back({0, 0, rows});
  for (uint64_t row = 0; row < published.size(); ++row)
    if (published[row] != 0) Add(row, row, own);
  return TakenRows(row_bytes, rows, std::move(runs), std::move(own));
}

TakenRows TakenRows::OfSlices(const plan::Request& request,
                              std::span<const int64_t> table) {
  // Only this rank's entries are read here, so the tables of the other ranks
  // are still empty.
  const uint64_t n = request.num_ranks, rank = request.rank;
  const plan::Rows& sizes = request.rows;
  std::vector<int64_t> tables(n * table.size());
  std::ranges::copy(table, tables.begin() + rank * table.size());
  const plan::SliceTables<int64_t> slices = {tables.data(), n, sizes};
  std::vector<RowRun> published;
  uint64_t taken = 0;
  for (uint64_t k = 0; k < slices.entries(); ++k) {
    const int64_t received = slices.RecvSize(rank, k);
    if (received > 0) taken += std::min<uint64_t>(received, sizes.taken);
    const int64_t rows = slices.SendSize(rank, k);
    // Leave out a wrong slice: its rows need not be put, because peers refuse
    // the slice before they read its rows.
    if (k / sizes.slices == rank || rows == 0 ||
        plan::LeavesRows(slices.InputOffset(rank, k), rows,
                         slices.operand_rows()))
      continue;
    published.push_back(
        {slices.InputRow(rank, k), 0, static_cast<uint64_t>(rows)});
  }
  const uint64_t row_bytes =
      request.count * request.element_bytes / sizes.table;
  TakenRows rows(row_bytes, sizes.table, {}, Union(std::move(published)));
  rows.request_ = request;
  rows.tables_ = std::move(tables);
  rows.taken_bytes_ = taken * row_bytes;
  rows.copy_bytes_ = rows.block_bytes_;  // most slices are long
  rows.ready_ = false;
  return rows;
}

Status TakenRows::ReadyFor(const plan::Step& step) {
  const bool takes =
      step.kind == plan::StepKind::kGet || step.kind == plan::StepKind::kCopy;
  if (ready_ || !takes || TableAtOutput(step.to) != nullptr) return OkStatus();
  const uint64_t n = request_.num_ranks, rank = request_.rank;
  const plan::SliceTables<int64_t> slices = {tables_.data(), n, request_.rows};
  CXL_RETURN_IF_ERROR(plan::CheckSlices(slices));
  for (uint64_t sender = 0; sender < n; ++sender) {
    std::vector<RowRun> runs;
    for (uint64_t s = 0; s < slices.slices(); ++s) {
      const uint64_t k = rank * slices.slices() + s;
      const auto rows = static_cast<uint64_t>(slices.SendSize(sender, k));
      if (rows == 0) continue;
      runs.push_back(
          {slices.InputRow(sender, k), slices.OutputRow(sender, k), rows});
    }
    by_rank_.push_back(Sorted(std::move(runs)));
  }
  ready_ = true;
  return OkStatus();
}

void ZeroRows(const plan::Request& request, std::span<const int32_t> indices,
              std::byte* output) {
  if (indices.empty()) return;
  const uint64_t row = plan::OutputBytes(request) / indices.size();
  const uint64_t rows = request.rows.table * request.num_ranks;
  for (size_t i = 0; i < indices.size(); ++i)
    if (indices[i] < 0 || static_cast<uint64_t>(indices[i]) >= rows)
      std::memset(output + i * row, 0, row);
}

}  // namespace jax_cxl::cpu
