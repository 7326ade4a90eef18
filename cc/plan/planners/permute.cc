#include <algorithm>

#include "cc/plan/planners/planner.h"

namespace jax_cxl::plan {

// Round t carries chunk t of each block that another rank receives.
uint64_t PlanPermute(Planner& planner) {
  const int rank = planner.rank();
  const uint64_t block = planner.block();
  const std::vector<int32_t>& sources = planner.request().sources;
  const int source = sources[rank];
  const bool sends = source != rank && std::ranges::count(sources, rank) > 0;
  const Chunks chunks = planner.Cut(block);
  auto publish = [&](uint64_t t) {
    if (sends) planner.PublishChunk(chunks, t);
  };
  auto retrieve = [&](uint64_t t) {
    if (source >= 0 && source != rank)
      planner.Get(source, t, 0, chunks.Begin(t), chunks.Size(t));
  };
  Pipeline(chunks.count, publish, retrieve);
  // The rank zeroes or copies its own output last, because no peer waits for
  // that.
  if (source < 0) planner.Zero(0, block);
  if (source == rank) planner.Copy(0, 0, block);
  return chunks.count;
}

}  // namespace jax_cxl::plan
