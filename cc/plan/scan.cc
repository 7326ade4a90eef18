#include "cc/plan/planner.h"

namespace jax_cxl::plan {

// Round t carries chunk t of all blocks but the last rank's, which nobody
// needs. Each rank reduces what it needs from the start: handing prefixes on
// would round more than once in the types that accumulate in a wider one.
Plan PlanScan(Planner planner) {
  const int rank = planner.rank();
  const bool sends = rank + 1 < planner.ranks();
  const int last = planner.request().op == Op::kScan ? rank + 1 : rank;
  const Chunks chunks = planner.Cut(planner.block(), 1);
  auto publish = [&](uint64_t t) {
    if (!sends) return;
    planner.Put(t, chunks.Begin(t), 0, chunks.Size(t));
    planner.Publish(t);
  };
  auto retrieve = [&](uint64_t t) {
    const uint64_t at = chunks.Begin(t), size = chunks.Size(t);
    if (last > 1) {
      planner.Reduce(0, last, t, 0, at, at, size);
    } else if (rank == 0 && last == 1) {
      planner.Copy(at, at, size);
    } else if (last == 1) {
      planner.Get(0, t, 0, at, size);  // rank 1 of exscan
    }
  };
  Pipeline(chunks.count, publish, retrieve);
  return std::move(planner).Finish(chunks.count);
}

}  // namespace jax_cxl::plan
