#include "cc/plan/planners/planner.h"

namespace jax_cxl::plan {

// Round t carries chunk t of all blocks of the root's input, except the block
// for the root itself. Part i - 1 of a slot (counted from 0) is for the root's
// i-th peer.
uint64_t PlanScatter(Planner& planner) {
  const int n = planner.ranks(), root = planner.request().root;
  const uint64_t block = planner.block();
  const Chunks chunks = planner.Cut(block, {.parts = n - 1});
  for (uint64_t t = 0; t < chunks.count; ++t) {
    const uint64_t at = chunks.Begin(t), size = chunks.Size(t);
    if (!planner.is_root()) {
      planner.Get(root, t, planner.reader() * chunks.stride, at, size);
      continue;
    }
    for (int i = 1; i < n; ++i)
      planner.Put(t, planner.Peer(i) * block + at, (i - 1) * chunks.stride,
                  size);
    planner.Publish(t);
    planner.Copy(root * block + at, at, size);
  }
  return chunks.count;
}

}  // namespace jax_cxl::plan
