#include "cc/plan/planners/planner.h"

namespace jax_cxl::plan {

// Round t carries chunk t of each rank's block. A rank publishes all rounds of
// a window at once. A window has more than one round only if that spreads the
// load over the devices. A ring needs slots for no more than two windows, for
// the reason given at Pipeline() (planner.h).
uint64_t PlanAllGather(Planner& planner) {
  const uint64_t block = planner.block();
  const Chunks chunks = planner.Cut(block);
  const Turns turns = planner.TakeTurns(chunks.count);
  auto rounds = [&](uint64_t w, const auto& visit) {
    const uint64_t first = w * turns.window;
    for (uint64_t i = 0; i < turns.window; ++i) {
      const uint64_t t = first + (turns.start + i) % turns.window;
      if (t < chunks.count) visit(t);
    }
    return std::min(first + turns.window, chunks.count) - 1;
  };
  auto publish = [&](uint64_t w) {
    const uint64_t last = rounds(w, [&](uint64_t t) {
      planner.Put(t, chunks.Begin(t), 0, chunks.Size(t));
    });
    planner.PublishNothing(last);
    // Copy the rank's own block here, while these bytes are in the cache
    // because of the puts.
    rounds(w, [&](uint64_t t) {
      const uint64_t at = chunks.Begin(t);
      planner.Copy(at, planner.rank() * block + at, chunks.Size(t));
    });
  };
  auto retrieve = [&](uint64_t w) {
    rounds(w, [&](uint64_t t) {
      for (const int peer : planner.Peers())
        planner.Get(peer, t, 0, peer * block + chunks.Begin(t), chunks.Size(t));
    });
  };
  Pipeline(CeilDiv(chunks.count, turns.window), publish, retrieve);
  return chunks.count;
}

}  // namespace jax_cxl::plan
