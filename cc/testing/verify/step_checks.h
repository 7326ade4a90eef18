#ifndef JAX_CXL_TESTING_VERIFY_STEP_CHECKS_H_
#define JAX_CXL_TESTING_VERIFY_STEP_CHECKS_H_

#include <cstdint>

#include "cc/base/status.h"
#include "cc/plan/plan.h"

namespace jax_cxl::plan {

// Checks a step of a plan of `rank` before the step runs. The step must stay
// inside the buffers, and inside the `rounds` rounds of the call. Internal to
// cc/plan.
Status CheckStep(const Request& request, const Geometry& geometry,
                 uint64_t rounds, int rank, const Step& step);

}  // namespace jax_cxl::plan

#endif  // JAX_CXL_TESTING_VERIFY_STEP_CHECKS_H_
