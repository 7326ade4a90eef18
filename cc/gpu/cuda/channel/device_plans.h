#ifndef JAX_CXL_GPU_CUDA_CHANNEL_DEVICE_PLANS_H_
#define JAX_CXL_GPU_CUDA_CHANNEL_DEVICE_PLANS_H_

#include <cstdint>
#include <optional>

#include "cc/base/status.h"
#include "cc/comm/call/call.h"
#include "cc/comm/call/gpu_path.h"
#include "cc/engine/cuda/device_call.h"
#include "cc/engine/gpu_plan/gpu_plan.h"
#include "cc/gpu/cuda/channel/device_connection.h"
#include "cc/gpu/cuda/channel/plan_store.h"
#include "cc/plan/plan.h"

// The GPU plans of calls, and calls in the form in which devices execute them,
// for channels of both kinds (DeviceChannel, CountedChannel).
namespace jax_cxl::comm {

// Returns the plan of a short call, whose data carry flags. Returns no plan if
// the call is too long for flags, or if it moves rows. `slot_bytes` is
// DeviceOptions::flagged_slot_bytes.
Result<std::optional<cuda::GpuPlan>> MakeFlaggedPlan(
    const plan::Request& request, uint64_t slot_bytes);

// Returns the plan of a call whose data go through the slots.
Result<cuda::GpuPlan> MakeSlotPlan(const plan::Request& request,
                                   const DeviceConnection& connection,
                                   SlotUse use);

// Returns a call in the form in which the device executes it. The channel then
// fills in the numbers of the call, and the addresses of the channel's own
// memory.
cuda::DeviceCall MakeDeviceCall(const Call& call, const StoredPlan& gpu_plan,
                                const DeviceConnection& connection,
                                SlotUse use);

}  // namespace jax_cxl::comm

#endif  // JAX_CXL_GPU_CUDA_CHANNEL_DEVICE_PLANS_H_
