#ifndef JAX_CXL_ENGINE_CUDA_FLAGGED_FLAGGED_H_
#define JAX_CXL_ENGINE_CUDA_FLAGGED_FLAGGED_H_

#include <cuda_runtime_api.h>

#include "cc/engine/cuda/device_call.h"
#include "cc/engine/gpu_plan/gpu_plan.h"

// Short messages: every 8 bytes in the pool are 4 of data and 4 that say which
// round they belong to. Whoever reads them with one load knows whether they are
// there, so that no doorbell and no fence stands between a put and a get: a
// call takes one way over the link and one back. It costs twice the bytes.
//
// Such calls have a ring of their own (DeviceControl::flagged): in slots that
// carry plain data as well, data could look like a flag. The words of the ring
// only ever say: this member began that call, and has read all of this round.
namespace jax_cxl::cuda {

// Whether the kernel can execute it: one round, in which nothing depends on
// what was received before. The same on all ranks.
bool FitsFlagged(const GpuPlan& gpu_plan);

// What the host knows of a call besides: it travels with the launch.
struct FlaggedPlan {
  const DeviceStep* sending;  // as many as the call says
  const DeviceStep* receiving;
  const MemberView* members;
  uint32_t blocks;
};

// As Launch (see executor.h). `call.base_round` counts the rounds of this ring.
cudaError_t LaunchFlagged(const DeviceCall& call, const FlaggedPlan& gpu_plan,
                          cudaStream_t stream);

// Thread blocks for a GPU plan: as many as keep each thread's work small.
uint32_t FlaggedBlocks(const GpuPlan& gpu_plan);

// Flags have 32 bits. Before they begin anew this wipes the ring, once all
// peers have read what is in it, and waits until they have wiped theirs; it
// takes the place of round `call.base_round`.
cudaError_t LaunchWipe(const DeviceCall& call, cudaStream_t stream);

// Whether the ring has to be wiped in the place of this round.
constexpr bool MustWipe(uint64_t round) {
  return static_cast<uint32_t>(round + 1) == 0;
}

// See executor.h.
cudaError_t PreloadFlagged();

}  // namespace jax_cxl::cuda

#endif  // JAX_CXL_ENGINE_CUDA_FLAGGED_FLAGGED_H_
