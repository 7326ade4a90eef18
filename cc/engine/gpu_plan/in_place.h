#ifndef JAX_CXL_ENGINE_GPU_PLAN_IN_PLACE_H_
#define JAX_CXL_ENGINE_GPU_PLAN_IN_PLACE_H_

#include <cstdint>

#include "cc/base/status.h"
#include "cc/engine/gpu_plan/gpu_plan.h"

namespace jax_cxl::cuda {

// Adapts a GPU plan to a call whose input and output overlap: byte 0 of the
// output is byte `shift` of the input. Each receiving step that writes to the
// output then waits for the puts that read the bytes it overwrites.
//
// Fails with kUnimplemented if such a wait could last forever, or if different
// blocks put and write the same byte.
Status OrderInPlace(int64_t shift, const Stripes& stripes, GpuPlan* gpu_plan);

// Returns true if a short message (flagged_ring.h) gives the right result for a
// call that overlaps in this way. Its threads do not wait for each other, so
// each thread must overwrite only what it has read itself.
bool ShortIsRightInPlace(int64_t shift, const GpuPlan& gpu_plan);

}  // namespace jax_cxl::cuda

#endif  // JAX_CXL_ENGINE_GPU_PLAN_IN_PLACE_H_
