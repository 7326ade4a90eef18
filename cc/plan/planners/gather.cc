#include "cc/plan/planners/planner.h"

namespace jax_cxl::plan {

// Round t carries chunk t of each rank's block, except the root's.
uint64_t PlanGather(Planner& planner) {
  const uint64_t block = planner.block();
  const Chunks chunks = planner.Cut(block);
  for (uint64_t t = 0; t < chunks.count; ++t) {
    if (!planner.is_root()) {
      planner.PublishChunk(chunks, t);
      continue;
    }
    const uint64_t at = chunks.Begin(t), size = chunks.Size(t);
    // Copy the root's own block first, because the peers do their puts
    // meanwhile.
    planner.Copy(at, planner.rank() * block + at, size);
    for (const int peer : planner.Peers())
      planner.Get(peer, t, 0, peer * block + at, size);
  }
  return chunks.count;
}

}  // namespace jax_cxl::plan
