#include "cc/plan/planners/planner.h"

namespace jax_cxl::plan {

// Doorbells only: every rank rings, and waits for every other rank.
uint64_t PlanBarrier(Planner& planner) {
  if (planner.ranks() > 1) planner.PublishNothing(0);
  for (const int peer : planner.Peers()) planner.Await(peer, 0);
  return 1;
}

}  // namespace jax_cxl::plan
