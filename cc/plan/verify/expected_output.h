#ifndef JAX_CXL_PLAN_VERIFY_EXPECTED_OUTPUT_H_
#define JAX_CXL_PLAN_VERIFY_EXPECTED_OUTPUT_H_

#include "cc/plan/plan.h"
#include "cc/plan/verify/extents.h"

namespace jax_cxl::plan {

// What `rank` must find in its output, from the table at plan::Request: the
// specification against which the verifier holds plans. Bytes that the
// operation leaves untouched are in no extent.
Extents ExpectedOutput(const Request& request, int rank);

}  // namespace jax_cxl::plan

#endif  // JAX_CXL_PLAN_VERIFY_EXPECTED_OUTPUT_H_
