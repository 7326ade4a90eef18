#ifndef JAX_CXL_GPU_RELAY_RELAY_PLAN_H_
#define JAX_CXL_GPU_RELAY_RELAY_PLAN_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "cc/engine/gpu_plan/channel_words.h"
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

// Makes the host's plan for member `self`, which has this GPU plan.
RelayPlan MakeRelayPlan(const cuda::GpuPlan& gpu_plan, int num_members,
                        int self);

// A call whose data a device moves, and whose doorbells its host relays.
struct RelayedCall {
  std::shared_ptr<const RelayPlan> plan;
  // True for a short call, whose data carry flags (see FlaggedRelay). Of the
  // fields below, such a call uses only `base_round`, which then counts rounds
  // of the rings for short calls.
  bool flagged = false;
  // The slots that the call uses, by member. They must outlive the call.
  const cuda::MemberView* members = nullptr;
  // How many words of the mirror the device uses: one per block of a kernel, or
  // one per pipeline of the copy engines.
  uint32_t num_words = 1;
  // True if each round rings only the word of its slot (copy engines).
  // False if each round rings all `num_words` words, one for each block
  // (kernels).
  bool words_take_turns = false;
  uint32_t num_slots = 0;
  // Where the stripes of the thread blocks lie in slots (see plan::Stripes). If
  // slot_step is 0, all stripes of a round lie in one slot.
  uint32_t unit_bytes = 0;
  uint32_t blocks = 1;
  uint32_t slot_step = 0;
  uint64_t base_round = 0;  // rounds of all earlier calls
  uint64_t call = 0;        // number of this call in the channel
  uint64_t hash = 0;
  // For this call, the device waits until the peers have ended this many rounds
  // of earlier calls.
  uint64_t awaited_end = 0;
  // True if the device may begin this call before it ends the previous call,
  // which uses the same words and slots. This happens in a series of the copy
  // engines.
  bool follows_on = false;
};

}  // namespace jax_cxl::comm

#endif  // JAX_CXL_GPU_RELAY_RELAY_PLAN_H_
