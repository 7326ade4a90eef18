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

}  // namespace

// An all_gather of which executors publish and retrieve only some rows. A table
// is often sorted by the rank that takes a row. So each rank starts with the
// chunks that its successor would take, as in all_to_all. Otherwise all ranks
// would read from one rank at a time.
Plan PlanTakeRows(Planner planner) {
  const uint64_t block = planner.block(), n = planner.ranks();
  const Chunks chunks = CutRows(planner);
  auto begin = [&](uint64_t rank, uint64_t t) {
    const uint64_t start = (rank + 1) % n * chunks.count / n;
    return (start + t) % chunks.count * chunks.bytes;
  };
  auto size = [&](uint64_t begin) {
    return std::min(chunks.bytes, block - begin);
  };
  auto publish = [&](uint64_t t) {
    const uint64_t at = begin(planner.rank(), t);
    planner.Put(t, at, 0, size(at));
    planner.PublishNothing(t);
    planner.Copy(at, planner.rank() * block + at, size(at));
  };
  auto retrieve = [&](uint64_t t) {
    for (int i = 1; i < planner.ranks(); ++i) {
      const int peer = planner.Peer(i);
      const uint64_t at = begin(peer, t);
      planner.Get(peer, t, 0, peer * block + at, size(at));
    }
  };
  Pipeline(chunks.count, publish, retrieve);
  return std::move(planner).Finish(chunks.count);
}

}  // namespace jax_cxl::plan
