#ifndef JAX_CXL_PLAN_PLANNERS_MAKE_PLAN_H_
#define JAX_CXL_PLAN_PLANNERS_MAKE_PLAN_H_

#include "cc/base/status.h"
#include "cc/plan/plan.h"

namespace jax_cxl::plan {

// Checks the request and makes this rank's plan. Errors: kInvalidArgument,
// which names the wrong field; kResourceExhausted if the slots are so small
// that the plan would take too much memory.
Result<Plan> MakePlan(const Request& request, const Geometry& geometry);

}  // namespace jax_cxl::plan

#endif  // JAX_CXL_PLAN_PLANNERS_MAKE_PLAN_H_
