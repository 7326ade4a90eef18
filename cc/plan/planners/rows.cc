#include <algorithm>
#include <numeric>

#include "cc/plan/planners/planner.h"

namespace jax_cxl::plan {
namespace {

// Chunks consist of whole rows, unless a row is longer than a slot.
Chunks CutRows(const Planner& planner) {
  const uint64_t block = planner.block();
  const uint64_t slot = planner.geometry().slot_bytes;
  const uint64_t row = block / planner.request().rows.table;
  Chunks chunks = planner.Cut(block);
  const uint64_t lines = std::lcm(row, kSlotAlignment);
  const uint64_t grain = lines <= slot ? lines : row;
  if (grain > slot) return chunks;
  const uint64_t grains = (chunks.bytes + grain - 1) / grain;
  chunks.bytes = std::min(grains, slot / grain) * grain;
  chunks.count = (block + chunks.bytes - 1) / chunks.bytes;
  return chunks;
}

// The rounds of the tables of slices, which every rank reads before the rows.
class SliceRounds {
 public:
  SliceRounds(const Request& request, const Geometry& geometry)
      : bytes_(request.rows.slice_bytes),
        slot_(geometry.slot_bytes / geometry.part_alignment *
              geometry.part_alignment),
        stride_(RoundUp(bytes_, geometry.part_alignment)) {
    const uint64_t left = slot_ - std::min(slot_, stride_);
    shares_ = bytes_ > 0 && left >= geometry.slot_bytes / 2 &&
              left >= request.num_ranks * geometry.part_alignment;
  }

  // Rounds before the first one with rows.
  uint64_t count() const { return shares_ ? 0 : (bytes_ + slot_ - 1) / slot_; }

  // The geometry of the rows. If the tables are short, round 0 carries both the
  // rows and, after them, a table.
  Geometry RowGeometry(Geometry geometry) const {
    if (shares_) geometry.slot_bytes = room();
    return geometry;
  }

  // Visits the parts of a table: visit(round, offset in the slot, offset in the
  // table, bytes).
  template <typename Visit>
  void ForEach(const Visit& visit) const {
    for (uint64_t at = 0; at < bytes_; at += slot_)
      visit(at / slot_, shares_ ? room() : 0, at, std::min(slot_, bytes_ - at));
  }

 private:
  uint64_t room() const { return slot_ - stride_; }

  uint64_t bytes_;
  uint64_t slot_;
  uint64_t stride_;  // of a whole table
  bool shares_ = false;
};

}  // namespace

// An all_gather in which executors publish and retrieve only some of the rows.
// Rows are often sorted by the rank that takes them. So each rank starts with
// the chunks that its successor would take, as in all_to_all. Otherwise all
// ranks would read from one rank at a time.
//
// The tables of slices of a ragged_all_to_all come first. A rank does not wait
// for its peers' tables before it publishes rows: its own table lists the rows
// its peers take.
Plan PlanRows(Planner planner) {
  const Request& request = planner.request();
  const uint64_t block = planner.block(), n = planner.ranks();
  const uint64_t rank = planner.rank(), table = request.rows.slice_bytes;
  const SliceRounds slices(request, planner.geometry());
  const Geometry geometry = slices.RowGeometry(planner.geometry());
  const Chunks chunks = CutRows(Planner(request, geometry));
  const uint64_t before = slices.count();
  auto begin = [&](uint64_t rank, uint64_t t) {
    const uint64_t start = (rank + 1) % n * chunks.count / n;
    return (start + t) % chunks.count * chunks.bytes;
  };
  auto size = [&](uint64_t begin) {
    return std::min(chunks.bytes, block - begin);
  };
  auto put_table = [&](uint64_t round, uint64_t at, uint64_t from,
                       uint64_t bytes) {
    planner.Put(round, block + from, at, bytes);
    if (before > 0) planner.PublishNothing(round);
  };
  auto get_tables = [&](uint64_t round, uint64_t at, uint64_t from,
                        uint64_t bytes) {
    for (int i = 1; i < planner.ranks(); ++i) {
      const int peer = planner.Peer(i);
      planner.Get(peer, round, at, n * block + peer * table + from, bytes);
    }
  };
  auto publish = [&](uint64_t t) {
    const uint64_t at = begin(rank, t);
    if (t == 0 && before == 0) slices.ForEach(put_table);
    planner.Put(before + t, at, 0, size(at));
    planner.PublishNothing(before + t);
    if (table == 0) planner.Copy(at, rank * block + at, size(at));
  };
  auto retrieve = [&](uint64_t t) {
    if (t == 0 && before == 0) slices.ForEach(get_tables);
    for (int i = 1; i < planner.ranks(); ++i) {
      const int peer = planner.Peer(i);
      const uint64_t at = begin(peer, t);
      planner.Get(peer, before + t, 0, peer * block + at, size(at));
    }
  };
  planner.Copy(block, n * block + rank * table, table);
  if (before > 0) {
    slices.ForEach(
        [&](uint64_t round, uint64_t at, uint64_t from, uint64_t bytes) {
          put_table(round, at, from, bytes);
          get_tables(round, at, from, bytes);
        });
  }
  Pipeline(chunks.count, publish, retrieve);
  // No row moves to the output before the tables are checked.
  for (uint64_t t = 0; table > 0 && t < chunks.count; ++t) {
    const uint64_t at = begin(rank, t);
    planner.Copy(at, rank * block + at, size(at));
  }
  return std::move(planner).Finish(before + chunks.count);
}

}  // namespace jax_cxl::plan
