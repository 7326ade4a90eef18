#include "cc/plan/planner.h"

namespace jax_cxl::plan {

// Round t carries chunk t of the root's block. The root runs ahead of its
// readers by as many rounds as there are slots.
Plan PlanBroadcast(Planner planner) {
  const int root = planner.request().root;
  const Chunks chunks = planner.Cut(planner.block(), 1);
  for (uint64_t t = 0; t < chunks.count; ++t) {
    const uint64_t at = chunks.Begin(t), size = chunks.Size(t);
    if (planner.is_root()) {
      planner.Put(t, at, 0, size);
      planner.Publish(t);
      planner.Copy(at, at, size);
    } else {
      planner.Get(root, t, 0, at, size);
    }
  }
  return std::move(planner).Finish(chunks.count);
}

}  // namespace jax_cxl::plan
