#ifndef JAX_CXL_PLAN_PLANNERS_MAKE_PLAN_H_
#define JAX_CXL_PLAN_PLANNERS_MAKE_PLAN_H_

#include "cc/base/status.h"
#include "cc/plan/plan.h"

namespace jax_cxl::plan {

// Checks the request and the geometry, and makes the plan of the rank
// `request.rank`. Fails with kInvalidArgument, and names the wrong field, or
// with kResourceExhausted if the slots are so small that the plan would take
// too much memory.
Result<Plan> MakePlan(const Request& request, const Geometry& geometry);

}  // namespace jax_cxl::plan

#endif  // JAX_CXL_PLAN_PLANNERS_MAKE_PLAN_H_
