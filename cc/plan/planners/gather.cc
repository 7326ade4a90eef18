#include "cc/plan/planners/planner.h"

namespace jax_cxl::plan {

// Round t carries chunk t of the blocks of all ranks except the root.
Plan PlanGather(Planner planner) {
  const uint64_t block = planner.block();
  const Chunks chunks = planner.Cut(block);
  for (uint64_t t = 0; t < chunks.count; ++t) {
    const uint64_t at = chunks.Begin(t), size = chunks.Size(t);
    if (!planner.is_root()) {
      planner.Put(t, at, 0, size);
      planner.Publish(t);
      continue;
    }
    // Copy first: meanwhile the peers do their puts.
    planner.Copy(at, planner.rank() * block + at, size);
    for (int i = 1; i < planner.ranks(); ++i) {
      const int peer = planner.Peer(i);
      planner.Get(peer, t, 0, peer * block + at, size);
    }
  }
  return std::move(planner).Finish(chunks.count);
}

}  // namespace jax_cxl::plan
