#ifndef JAX_CXL_ENGINE_SIM_LOWER_H_
#define JAX_CXL_ENGINE_SIM_LOWER_H_

#include "cc/base/status.h"
#include "cc/engine/sim/machine.h"
#include "cc/engine/sim/task_graph.h"
#include "cc/plan/gpu_geometry.h"
#include "cc/plan/plan.h"

namespace jax_cxl::sim {

struct LowerOptions {
  // Calls that plan::IsFlagged carry their flags between their data.
  bool flags = false;
  // How other calls lie in the slots.
  plan::Stripes stripes = {};
};

// The plans of all ranks, as a GPU executes them: puts go out in order, gets
// and reductions come in in order, each direction by itself, doorbells are rung
// meanwhile, and a put of reduced bytes waits for the reduction. Gets of one
// round that follow each other are one flow from all their peers. Placement
// says which cards a flow loads.
Result<TaskGraph> Lower(plan::Request request, const plan::Geometry& geometry,
                        const Machine& machine, const Costs& costs,
                        const LowerOptions& options);

}  // namespace jax_cxl::sim

#endif  // JAX_CXL_ENGINE_SIM_LOWER_H_
