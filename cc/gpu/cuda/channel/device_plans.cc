#include "cc/gpu/cuda/channel/device_plans.h"

#include <utility>

#include "cc/engine/gpu_plan/flagged_ring.h"
#include "cc/plan/gpu_geometry.h"
#include "cc/plan/planners/make_plan.h"

namespace jax_cxl::comm {

Result<std::optional<cuda::GpuPlan>> MakeFlaggedPlan(
    const plan::Request& request, uint64_t slot_bytes) {
  if (plan::MovesRows(request.op) || slot_bytes == 0 ||
      !plan::IsFlagged(request, plan::kFlaggedSlotsAt55GBps * slot_bytes))
    return std::optional<cuda::GpuPlan>();
  CXL_ASSIGN_OR_RETURN(
      const plan::Plan plan,
      plan::MakePlan(request,
                     plan::FlaggedGeometry(request.num_ranks, slot_bytes)));
  CXL_ASSIGN_OR_RETURN(
      cuda::GpuPlan gpu_plan,
      cuda::MakeGpuPlan(plan, request.rank, cuda::Stripes{1, 16}));
  if (!cuda::flagged::Fits(gpu_plan)) return std::optional<cuda::GpuPlan>();
  return std::optional(std::move(gpu_plan));
}

Result<cuda::GpuPlan> MakeSlotPlan(const plan::Request& request,
                                   const DeviceConnection& connection,
                                   SlotUse use) {
  CXL_ASSIGN_OR_RETURN(const plan::Plan plan,
                       plan::MakePlan(request, connection.geometry(use)));
  return cuda::MakeGpuPlan(plan, request.rank, connection.stripes());
}

cuda::DeviceCall MakeDeviceCall(const Call& call, const StoredPlan& gpu_plan,
                                const DeviceConnection& connection,
                                SlotUse use) {
  cuda::DeviceCall device;
  device.sending = gpu_plan.sending;
  device.receiving = gpu_plan.receiving;
  device.num_sending = gpu_plan.num_sending;
  device.num_receiving = gpu_plan.num_receiving;
  device.num_members = static_cast<int32_t>(connection.members().size());
  device.self = connection.group().self;
  device.num_slots = static_cast<uint32_t>(connection.geometry(use).num_slots);
  device.unit_bytes = connection.stripes().unit_bytes;
  device.slot_step = connection.stripes().slot_step;
  device.flagged_slot_bytes = connection.flagged_slot_bytes();
  device.rounds = gpu_plan.rounds;
  device.rounds_ahead =
      RoundsAhead(call.request, gpu_plan.rounds, gpu_plan.bytes_published);
  device.input = call.input;
  device.output = call.output;
  device.dtype = call.dtype;
  device.reduce_op = call.reduce_op;
  return device;
}

}  // namespace jax_cxl::comm
