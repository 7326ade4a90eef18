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

// Whether twice the bytes take less time than a fence, a doorbell and a poll:
// where all ranks' blocks together, and what a rank holds, are `most` bytes at
// most. The faster the links, the more that is.
bool IsFlagged(const Request& request, uint64_t most);
inline constexpr uint64_t kFlaggedAt20GBps = uint64_t{64} << 10;   // modelled
inline constexpr uint64_t kFlaggedAt55GBps = uint64_t{256} << 10;  // measured

}  // namespace jax_cxl::plan

#endif  // JAX_CXL_PLAN_GPU_GEOMETRY_H_
