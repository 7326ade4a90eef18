#ifndef JAX_CXL_PLAN_GPU_GEOMETRY_H_
#define JAX_CXL_PLAN_GPU_GEOMETRY_H_

#include "cc/plan/plan.h"

namespace jax_cxl::plan {

// The rings of a group of GPUs in a pool of `num_devices` devices that has
// space for the largest slots. The CUDA engine and the simulator work with it.
Geometry GpuGeometry(int num_devices, int num_ranks);

// Short messages have a ring of their own, whose data carry flags
// (cc/engine/cuda/flagged.h): calls of one round in it, of slots of this size.
inline constexpr uint64_t kFlaggedBytes = uint64_t{64} << 10;
inline constexpr int kFlaggedSlots = 4;
Geometry FlaggedGeometry(int num_ranks);

// A flag for as many bytes of data.
inline constexpr int kFlaggedExpansion = 2;

// Whether twice the bytes take less time than a fence, a doorbell and a poll,
// on links of 20 GB/s: all ranks' blocks together, and what a rank holds. The
// simulator goes by this; the CUDA engine by the bytes of one block.
bool IsFlagged(const Request& request);

}  // namespace jax_cxl::plan

#endif  // JAX_CXL_PLAN_GPU_GEOMETRY_H_
