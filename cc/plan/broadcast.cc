#include <algorithm>

#include "cc/plan/planner.h"

namespace jax_cxl::plan {

// Round t carries chunk t of the root's block. The root runs ahead of its
// readers by as many rounds as there are slots.
//
// Readers that follow the root at its heels all read one slot, hence one
// device, at a time. Where slots lie on several devices they read a window of
// rounds side by side, half a ring at most, so that the root fills the other
// half meanwhile. A few readers each start a round after the one before, and
// stay apart. Many would catch up with each other: they take a whole window at
// once, its last round first, after which they need not wait for the others.
Plan PlanBroadcast(Planner planner) {
  const int root = planner.request().root, n = planner.ranks();
  const Geometry& geometry = planner.geometry();
  const uint64_t reader = (planner.rank() - root + n) % n - 1;
  const uint64_t readers = n - 1;
  const uint64_t side_by_side =
      std::min<uint64_t>(geometry.num_slots / 2, geometry.num_devices);
  const bool many = readers > side_by_side && side_by_side > 1;
  // Windows fill one after another, which takes more of them.
  const Chunks chunks = planner.Cut(planner.block(), 1, 1,
                                    many ? 4 * side_by_side : kPipelineChunks);
  if (planner.is_root()) {
    for (uint64_t t = 0; t < chunks.count; ++t) {
      const uint64_t at = chunks.Begin(t), size = chunks.Size(t);
      planner.Put(t, at, 0, size);
      planner.Publish(t);
      planner.Copy(at, at, size);
    }
    return std::move(planner).Finish(chunks.count);
  }
  const uint64_t window = std::min(side_by_side, chunks.count);
  if (!many && reader > 0 && window > 1) {
    planner.Await(root, std::min(reader, window - 1));
  }
  const uint64_t step = many ? window : 1;
  for (uint64_t first = 0; first < chunks.count; first += step) {
    for (uint64_t t = std::min(first + step, chunks.count); t-- > first;) {
      planner.Get(root, t, 0, chunks.Begin(t), chunks.Size(t));
    }
  }
  return std::move(planner).Finish(chunks.count);
}

}  // namespace jax_cxl::plan
