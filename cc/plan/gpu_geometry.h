#ifndef JAX_CXL_PLAN_GPU_GEOMETRY_H_
#define JAX_CXL_PLAN_GPU_GEOMETRY_H_

#include "cc/plan/plan.h"

namespace jax_cxl::plan {

// The rings of a group of GPUs in a pool of `num_devices` devices that has
// space for the largest slots. The CUDA engine and the simulator work with it.
Geometry GpuGeometry(int num_devices, int num_ranks);

}  // namespace jax_cxl::plan

#endif  // JAX_CXL_PLAN_GPU_GEOMETRY_H_
