#include "cc/plan/planner.h"

namespace jax_cxl::plan {

// Round t carries chunk t of each rank's block.
Plan PlanAllGather(Planner planner) {
  const uint64_t block = planner.block();
  const Chunks chunks = planner.Cut(block);
  auto publish = [&](uint64_t t) {
    const uint64_t at = chunks.Begin(t), size = chunks.Size(t);
    planner.Put(t, at, 0, size);
    planner.Publish(t);
    // Here, because the put left these bytes in the cache.
    planner.Copy(at, planner.rank() * block + at, size);
  };
  auto retrieve = [&](uint64_t t) {
    for (int i = 1; i < planner.ranks(); ++i) {
      const int peer = planner.Peer(i);
      planner.Get(peer, t, 0, peer * block + chunks.Begin(t), chunks.Size(t));
    }
  };
  Pipeline(chunks.count, publish, retrieve);
  return std::move(planner).Finish(chunks.count);
}

}  // namespace jax_cxl::plan
