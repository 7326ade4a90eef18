#include "cc/plan/planners/planner.h"

namespace jax_cxl::plan {

// Round t carries chunk t of all blocks that another rank needs. Each rank
// reads and reduces all inputs of its result. If ranks passed on partial
// results instead, a type that accumulates in a wider type would be rounded
// more than once.
uint64_t PlanScan(Planner& planner) {
  const int n = planner.ranks(), rank = planner.rank();
  const bool reverse = planner.request().reverse;
  const int own = planner.request().op == Op::kScan ? 1 : 0;
  // The ranks [first, last) whose inputs form the result.
  const int first = reverse ? rank + 1 - own : 0;
  const int last = reverse ? n : rank + own;
  const bool sends = reverse ? rank > 0 : rank + 1 < n;
  const Chunks chunks = planner.Cut(planner.block());
  auto publish = [&](uint64_t t) {
    if (sends) planner.PublishChunk(chunks, t);
  };
  auto retrieve = [&](uint64_t t) {
    const uint64_t at = chunks.Begin(t), size = chunks.Size(t);
    if (last - first > 1)
      planner.Reduce(first, last, t, 0, at, at, size);
    else if (last - first == 1 && first == rank)
      planner.Copy(at, at, size);
    else if (last - first == 1)
      planner.Get(first, t, 0, at, size);
  };
  return Pipeline(chunks.count, publish, retrieve);
}

}  // namespace jax_cxl::plan
