#ifndef JAX_CXL_SIMULATOR_LOWER_H_
#define JAX_CXL_SIMULATOR_LOWER_H_

#include "cc/base/status.h"
#include "cc/plan/gpu_geometry.h"
#include "cc/plan/plan.h"
#include "cc/simulator/machine.h"
#include "cc/simulator/task_graph.h"

namespace jax_cxl::sim {

struct LowerOptions {
  // If true, a call carries flags in its data if plan::IsFlagged returns true.
  bool flags = false;
  // How the blocks of a kernel divide the slots, in calls without flags.
  plan::Stripes stripes = {};
};

// Makes the tasks by which GPUs execute the plans of all ranks. A rank does its
// puts in order. It also does its gets and reductions in order, but
// independently of the puts. Copies continue while a doorbell rings. A put of
// reduced bytes waits for the reduction. Consecutive gets of one round become
// one flow that reads from all of their peers. The placement of the slots
// determines which cards a flow uses.
Result<TaskGraph> Lower(plan::Request request, const plan::Geometry& geometry,
                        const Machine& machine, const Costs& costs,
                        const LowerOptions& options);

}  // namespace jax_cxl::sim

#endif  // JAX_CXL_SIMULATOR_LOWER_H_
