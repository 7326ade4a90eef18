#ifndef JAX_CXL_ENGINE_GPU_PLAN_IN_PLACE_H_
#define JAX_CXL_ENGINE_GPU_PLAN_IN_PLACE_H_

#include <cstdint>

#include "cc/base/status.h"
#include "cc/engine/gpu_plan/gpu_plan.h"

namespace jax_cxl::cuda {

// Adapts a GPU plan to a call whose input and output overlap. Byte 0 of the
// output is byte `shift` of the input. Makes each receiving step that writes to
// the output wait for the puts that read the same bytes as input.
//
// Fails with kUnimplemented if such a wait could last forever, or if one block
// puts a byte that another block overwrites, because blocks do not wait for
// each other.
Status OrderInPlace(int64_t shift, const Stripes& stripes, GpuPlan* gpu_plan);

// Returns true if a short message (flagged_ring.h) gives the right result for a
// call whose output begins at byte `shift` of its input. The threads of a short
// message do not wait for each other. So the result is right only if each
// thread overwrites only bytes that it has already read itself.
bool ShortIsRightInPlace(int64_t shift, const GpuPlan& gpu_plan);

}  // namespace jax_cxl::cuda

#endif  // JAX_CXL_ENGINE_GPU_PLAN_IN_PLACE_H_
