#include "cc/plan/planners/planner.h"

namespace jax_cxl::plan {

// Round t carries chunk t of all blocks, except the block for the rank itself.
// Part i - 1 of a slot (counted from 0) is for Peer(i).
uint64_t PlanAllToAll(Planner& planner) {
  const int n = planner.ranks(), rank = planner.rank();
  const uint64_t block = planner.block();
  const Chunks chunks = planner.Cut(block, {.parts = n - 1});
  auto publish = [&](uint64_t t) {
    const uint64_t at = chunks.Begin(t), size = chunks.Size(t);
    for (int i = 1; i < n; ++i)
      planner.Put(t, planner.Peer(i) * block + at, (i - 1) * chunks.stride,
                  size);
    planner.Publish(t);
    planner.Copy(rank * block + at, rank * block + at, size);
  };
  auto retrieve = [&](uint64_t t) {
    for (int i = 1; i < n; ++i) {
      // Each rank counts its peers from itself. So this rank is the (n - i)-th
      // peer of Peer(i), and reads part n - i - 1 of Peer(i)'s slot.
      const int peer = planner.Peer(i), part = n - i - 1;
      planner.Get(peer, t, part * chunks.stride, peer * block + chunks.Begin(t),
                  chunks.Size(t));
    }
  };
  return Pipeline(chunks.count, publish, retrieve);
}

}  // namespace jax_cxl::plan
