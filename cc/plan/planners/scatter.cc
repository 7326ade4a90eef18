#include "cc/plan/planners/planner.h"

namespace jax_cxl::plan {

// Round t carries chunk t of all blocks except the root's own. The root's i-th
// peer reads the (i - 1)-th part of the slot.
Plan PlanScatter(Planner planner) {
  const int n = planner.ranks(), rank = planner.rank();
  const int root = planner.request().root;
  const uint64_t block = planner.block();
  const Chunks chunks = planner.Cut(block, {.parts = n - 1});
  for (uint64_t t = 0; t < chunks.count; ++t) {
    const uint64_t at = chunks.Begin(t), size = chunks.Size(t);
    if (!planner.is_root()) {
      const int part = (rank - root + n) % n - 1;
      planner.Get(root, t, part * chunks.stride, at, size);
      continue;
    }
    for (int i = 1; i < n; ++i) {
      planner.Put(t, planner.Peer(i) * block + at, (i - 1) * chunks.stride,
                  size);
    }
    planner.Publish(t);
    planner.Copy(rank * block + at, at, size);
  }
  return std::move(planner).Finish(chunks.count);
}

}  // namespace jax_cxl::plan
