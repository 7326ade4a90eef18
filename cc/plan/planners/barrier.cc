#include "cc/plan/planners/planner.h"

namespace jax_cxl::plan {

// Doorbells only: every rank rings, and waits for every other rank.
Plan PlanBarrier(Planner planner) {
  if (planner.ranks() > 1) planner.PublishNothing(0);
  for (int i = 1; i < planner.ranks(); ++i) planner.Await(planner.Peer(i), 0);
  return std::move(planner).Finish(1);
}

}  // namespace jax_cxl::plan
