#ifndef JAX_CXL_TESTING_VERIFY_DEBUG_STRING_H_
#define JAX_CXL_TESTING_VERIFY_DEBUG_STRING_H_

#include <string>
#include <string_view>

#include "cc/plan/plan.h"

namespace jax_cxl::plan {

std::string_view StepKindName(StepKind kind);

// Return a description of a step or a plan. The description of a plan has a
// line for each step.
std::string DebugString(const Step& step);
std::string DebugString(const Plan& plan);

}  // namespace jax_cxl::plan

#endif  // JAX_CXL_TESTING_VERIFY_DEBUG_STRING_H_
