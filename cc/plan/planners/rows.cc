#include <algorithm>
#include <numeric>

#include "cc/plan/planners/planner.h"

namespace jax_cxl::plan {
namespace {

// Cuts a block into chunks of whole rows. Chunks may cut a row only if it is
// longer than a slot.
Chunks CutRows(const Planner& planner) {
  const uint64_t block = planner.block();
  const uint64_t slot = planner.geometry().slot_bytes;
  const uint64_t row = block / planner.request().rows.table;
  Chunks chunks = planner.Cut(block);
  const uint64_t lines = std::lcm(row, kSlotAlignment);
  const uint64_t grain = lines <= slot ? lines : row;
  if (grain > slot) return chunks;
  const uint64_t grains = CeilDiv(chunks.bytes, grain);
  chunks.bytes = std::min(grains, slot / grain) * grain;
  chunks.count = CeilDiv(block, chunks.bytes);
  return chunks;
}

}  // namespace

// The plan equals an all_gather's, but executors publish and retrieve only
// some of the rows. Rows are often sorted by the rank that takes them.
// Therefore each rank starts with the chunks that its successor would probably
// take, as in all_to_all. If all ranks started with chunk 0 instead, they would
// publish rows for one rank at a time.
//
// In a ragged_all_to_all, the tables of slices come first. But a rank publishes
// rows without waiting for its peers' tables, because its own table lists the
// rows that its peers take.
uint64_t PlanRows(Planner& planner) {
  const Request& request = planner.request();
  const uint64_t block = planner.block(), n = planner.ranks();
  const uint64_t rank = planner.rank(), table = request.rows.slice_bytes;
  Geometry geometry = planner.geometry();
  const uint64_t align = geometry.part_alignment;
  const uint64_t slot = geometry.slot_bytes / align * align;
  // If the tables are short, they have no rounds of their own. In round 0, a
  // rank's slot holds rows, and after them the rank's table.
  const uint64_t left = slot - std::min(slot, RoundUp(table, align));
  const bool shares =
      table > 0 && left >= geometry.slot_bytes / 2 && left >= n * align;
  if (shares) geometry.slot_bytes = left;
  const Chunks chunks = CutRows(Planner(request, geometry));
  // The number of rounds that carry only tables. Rows come after them.
  const uint64_t before = shares ? 0 : CeilDiv(table, slot);
  auto begin = [&](uint64_t rank, uint64_t t) {
    const uint64_t start = (rank + 1) % n * chunks.count / n;
    return (start + t) % chunks.count * chunks.bytes;
  };
  auto size = [&](uint64_t begin) {
    return std::min(chunks.bytes, block - begin);
  };
  const uint64_t table_at = shares ? left : 0;
  auto put_table = [&](uint64_t round) {
    const uint64_t from = round * slot, bytes = std::min(slot, table - from);
    planner.Put(round, block + from, table_at, bytes);
    if (!shares) planner.PublishNothing(round);
  };
  auto get_tables = [&](uint64_t round) {
    const uint64_t from = round * slot, bytes = std::min(slot, table - from);
    for (const int peer : planner.Peers())
      planner.Get(peer, round, table_at, n * block + peer * table + from,
                  bytes);
  };
  auto publish = [&](uint64_t t) {
    const uint64_t at = begin(rank, t);
    if (t == 0 && shares) put_table(0);
    planner.Put(before + t, at, 0, size(at));
    planner.PublishNothing(before + t);
    if (table == 0) planner.Copy(at, rank * block + at, size(at));
  };
  auto retrieve = [&](uint64_t t) {
    if (t == 0 && shares) get_tables(0);
    for (const int peer : planner.Peers()) {
      const uint64_t at = begin(peer, t);
      planner.Get(peer, before + t, 0, peer * block + at, size(at));
    }
  };
  planner.Copy(block, n * block + rank * table, table);
  for (uint64_t round = 0; round < before; ++round) {
    put_table(round);
    get_tables(round);
  }
  Pipeline(chunks.count, publish, retrieve);
  // If there are tables, copy this rank's own rows only now, because no row may
  // move to the output before the tables are checked.
  for (uint64_t t = 0; table > 0 && t < chunks.count; ++t) {
    const uint64_t at = begin(rank, t);
    planner.Copy(at, rank * block + at, size(at));
  }
  return before + chunks.count;
}

}  // namespace jax_cxl::plan
