#ifndef JAX_CXL_ENGINE_GPU_PLAN_GPU_PLAN_H_
#define JAX_CXL_ENGINE_GPU_PLAN_GPU_PLAN_H_

#include <cstdint>
#include <vector>

#include "cc/base/status.h"
#include "cc/plan/gpu_geometry.h"
#include "cc/plan/plan.h"

// A plan in the form that thread blocks execute.
//
// Every block executes the whole GPU plan, but moves only its own stripes of
// each slot, and rings its own doorbells: block b of a rank communicates only
// with block b of its peers. Inside a block, one group of warps sends while
// another group receives, so that both directions of the link are busy.
// Therefore a plan is split into two lists of steps, one per direction. Each
// group of warps executes its list in order. A step that depends on steps of
// the other list states how many of those must be done first (`after`).
//
// If the plan does not deadlock when it is executed in its own order, no
// schedule of the two lists deadlocks. Proof: among all steps of a rank that
// are not done, take the step that is first in the plan's order. All steps
// before it are done, so it waits only for peers, as it would in the plan's own
// order.
namespace jax_cxl::cuda {

enum class DeviceStepKind : uint32_t {
  // Sending.
  kCopy,     // input[from, bytes) -> output[to]
  kZero,     // 0 -> output[to, bytes)
  kPut,      // input[from, bytes) -> my slot of `round` at `to`
  kPublish,  // published = round + 1
  // Receiving.
  kGet,           // slot of `first`, `round`, at `from` -> output[to]
  kReduce,        // as plan::StepKind::kReduce
  kReduceToSlot,  // as plan::StepKind::kReduceToSlot
  kReduceToBoth,  // to output[to] and to my slot of `to_round` at `to_slot`
  kRelease,       // released = round + 1
};

// A step as the device reads it: with fields of fixed sizes, and without
// pointers.
struct DeviceStep {
  DeviceStepKind kind = DeviceStepKind::kCopy;
  // How many steps of the other list must be done first. Used by kPublish
  // steps, and by receiving steps if input and output overlap (in_place.h).
  uint32_t after = 0;
  int32_t first = 0;  // kReduce*: sources are ranks [first, last)
  int32_t last = 0;
  uint64_t round = 0;
  uint64_t to_round = 0;
  uint64_t from = 0;  // as in plan::Step
  uint64_t input_from = 0;
  uint64_t to = 0;
  uint64_t to_slot = 0;
  uint64_t bytes = 0;
};
static_assert(sizeof(DeviceStep) == 72);

struct GpuPlan {
  uint64_t rounds = 0;
  std::vector<DeviceStep> sending;
  std::vector<DeviceStep> receiving;
  uint64_t bytes_published = 0;  // written to the pool by one execution
  uint64_t bytes_retrieved = 0;  // read from the pool by one execution
};

using plan::Stripes;

// Returns the GPU plan of `rank`. Fails with kUnimplemented for a plan in which
// one block would depend on another. No planner makes such a plan if
// plan::Geometry::part_alignment is a multiple of num_blocks * unit_bytes (both
// are members of `stripes`).
Result<GpuPlan> MakeGpuPlan(const plan::Plan& plan, int rank,
                            const Stripes& stripes);

}  // namespace jax_cxl::cuda

#endif  // JAX_CXL_ENGINE_GPU_PLAN_GPU_PLAN_H_
