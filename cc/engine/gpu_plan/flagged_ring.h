#ifndef JAX_CXL_ENGINE_GPU_PLAN_FLAGGED_RING_H_
#define JAX_CXL_ENGINE_GPU_PLAN_FLAGGED_RING_H_

#include <algorithm>
#include <cstdint>

#include "cc/engine/gpu_plan/channel_words.h"
#include "cc/engine/gpu_plan/gpu_plan.h"

// The layout of short messages (cc/engine/cuda/flagged/flagged.h) in a member's
// ring. Kernels, hosts and models share it. Every 8 bytes of the ring are 4
// bytes of data and a 4-byte flag. The flag names the round to which the data
// belong.
namespace jax_cxl::cuda::flagged {

// Bytes of data that a thread moves at once.
inline constexpr uint64_t kUnitBytes = 16;

// In the ring, a unit takes two vectors, each half data and half flags. The
// first vectors of all units of a group are adjacent, followed by their second
// vectors. So the 32 threads of a warp load and store contiguous memory.
inline constexpr uint64_t kVectorBytes = 16;
inline constexpr uint64_t kGroup = 32;  // units
static_assert(plan::kFlaggedBytes % (kGroup * kUnitBytes) == 0);

// Return the offsets in the slot of a unit's first and second vector.
constexpr uint64_t LowVector(uint64_t unit) {
  return (unit / kGroup * kGroup * 2 + unit % kGroup) * kVectorBytes;
}
constexpr uint64_t HighVector(uint64_t unit) {
  return LowVector(unit) + kGroup * kVectorBytes;
}

constexpr uint64_t NumUnits(uint64_t bytes) {
  return (bytes + kUnitBytes - 1) / kUnitBytes;
}

constexpr uint64_t SlotOf(uint64_t round) { return round % kFlaggedSlots; }

// The flag of a round. It is never 0 in a round that runs (see BeginsAnew).
constexpr uint32_t FlagOf(uint64_t round) {
  return static_cast<uint32_t>(round + 1);
}

// Returns true if the flag of this round would be 0, because its 32 bits wrap
// around. All members then clear their rings instead of running the round
// (cc/gpu/relay/flagged_relay.h).
constexpr bool BeginsAnew(uint64_t round) { return FlagOf(round) == 0; }

// The largest number of steps of a short message, both directions together.
inline constexpr uint32_t kMaxSteps = 2 * kMaxMembers + 8;

// Returns true if the plan can run as a short message. It must have one round,
// at most kMaxSteps steps, and no step that writes received data to a slot. The
// result is the same on all ranks.
inline bool Fits(const GpuPlan& gpu_plan) {
  const auto to_slot = [](const DeviceStep& step) {
    return step.kind == DeviceStepKind::kReduceToSlot ||
           step.kind == DeviceStepKind::kReduceToBoth;
  };
  return gpu_plan.rounds == 1 &&
         gpu_plan.sending.size() + gpu_plan.receiving.size() <= kMaxSteps &&
         std::none_of(gpu_plan.receiving.begin(), gpu_plan.receiving.end(),
                      to_slot);
}

// Returns the members from which a short message receives, one bit each.
inline uint64_t SourcesOf(const GpuPlan& gpu_plan) {
  static_assert(kMaxMembers <= 64);
  uint64_t sources = 0;
  for (const DeviceStep& step : gpu_plan.receiving)
    for (int member = step.first; member < step.last; ++member)
      sources |= uint64_t{1} << member;
  return sources;
}

// Returns true if a message receives from all other members. When it ends, all
// of them have begun its round, so they have read all earlier rounds.
constexpr bool HearsAll(uint64_t sources, int num_members, int self) {
  const uint64_t others =
      (~uint64_t{0} >> (64 - num_members)) & ~(uint64_t{1} << self);
  return (sources & others) == others;
}

}  // namespace jax_cxl::cuda::flagged

#endif  // JAX_CXL_ENGINE_GPU_PLAN_FLAGGED_RING_H_
