#ifndef JAX_CXL_GPU_RELAY_RELAY_PLAN_H_
#define JAX_CXL_GPU_RELAY_RELAY_PLAN_H_

#include <cstdint>
#include <span>
#include <vector>

#include "cc/engine/gpu_plan/gpu_plan.h"

namespace jax_cxl::comm {

// The bytes of a slot that carry data of one round.
struct SlotRange {
  uint64_t round = 0;
  uint64_t offset = 0;
  uint64_t bytes = 0;
};

// The host's work in a call whose data its device moves: the lines that the
// host writes back before it publishes, and the lines that it drops before the
// device reads them. Rounds count from the first round of the call.
struct RelayPlan {
  struct Step {
    uint64_t round = 0;
    std::vector<SlotRange> ranges;
  };

  uint64_t rounds = 0;
  // All lists are in the order of rounds.
  std::vector<Step> publications;  // written in this member's slots
  // What the device reads in the slots of each member. Empty for `self`.
  std::vector<std::vector<Step>> arrivals;
  std::vector<Step> releases;  // without ranges
  uint64_t last_written = 0;   // last round with data + 1; 0: none
};

// Makes the host's plan from `sending` and `receiving`, the steps of this
// member's GPU plan (cc/engine/gpu_plan/gpu_plan.h).
RelayPlan MakeRelayPlan(std::span<const cuda::DeviceStep> sending,
                        std::span<const cuda::DeviceStep> receiving,
                        uint64_t rounds, int num_members, int self);

}  // namespace jax_cxl::comm

#endif  // JAX_CXL_GPU_RELAY_RELAY_PLAN_H_
