#ifndef JAX_CXL_TESTING_VERIFY_EXPECTED_OUTPUT_H_
#define JAX_CXL_TESTING_VERIFY_EXPECTED_OUTPUT_H_

#include "cc/plan/plan.h"
#include "cc/testing/verify/extents.h"

namespace jax_cxl::plan {

// Returns what `rank` must have in its output after the call, according to the
// table at plan::Request. This is the specification against which the verifier
// checks plans. No extent covers bytes that the operation leaves untouched.
Extents ExpectedOutput(const Request& request, int rank);

}  // namespace jax_cxl::plan

#endif  // JAX_CXL_TESTING_VERIFY_EXPECTED_OUTPUT_H_
