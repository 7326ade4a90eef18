#include "cc/plan/planners/planner.h"

namespace jax_cxl::plan {

// A barrier uses only doorbells: every rank rings its own, and waits for those
// of all other ranks.
uint64_t PlanBarrier(Planner& planner) {
  if (planner.ranks() > 1) planner.PublishNothing(0);
  for (const int peer : planner.Peers()) planner.Await(peer, 0);
  return 1;
}

}  // namespace jax_cxl::plan
