#ifndef JAX_CXL_ENGINE_CUDA_FLAGGED_FLAGGED_H_
#define JAX_CXL_ENGINE_CUDA_FLAGGED_FLAGGED_H_

#include <cuda_runtime_api.h>

#include "cc/engine/cuda/device_call.h"
#include "cc/engine/gpu_plan/gpu_plan.h"

// Short messages. Every 8 bytes in the pool are 4 bytes of data and a flag of 4
// bytes, which names the round to which the data belong. A reader that loads
// them with one load knows whether the data have arrived. So no doorbell and no
// fence is needed between a put and a get: a call crosses the link once in each
// direction. But the call moves twice as many bytes.
//
// Such calls have their own ring (DeviceControl::flagged), because in slots
// with plain data, data could look like a flag. The ring's words only show that
// a member has begun a call, and that it has read all data of a round.
namespace jax_cxl::cuda {

// Like Launch (executor.h), or like LaunchCounted if the call has a journal.
// `call.base_round` counts the rounds of the rings for short messages. The
// steps of the plan and the `members` are arguments of the launch.
cudaError_t LaunchFlagged(const DeviceCall& call, const GpuPlan& gpu_plan,
                          const MemberView* members, cudaStream_t stream);

cudaError_t PreloadFlagged();

}  // namespace jax_cxl::cuda

#endif  // JAX_CXL_ENGINE_CUDA_FLAGGED_FLAGGED_H_
