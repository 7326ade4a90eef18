#ifndef JAX_CXL_ENGINE_CUDA_FLAGGED_FLAGGED_PEERS_CUH_
#define JAX_CXL_ENGINE_CUDA_FLAGGED_FLAGGED_PEERS_CUH_

#include <cstdint>

#include "cc/engine/cuda/block.cuh"
#include "cc/engine/cuda/device_call.h"
#include "cc/engine/cuda/device_memory.cuh"
#include "cc/engine/cuda/flagged/flagged_units.cuh"

// The words of the peers' rings (flagged.h): what each peer has read, and in
// which call it is.
namespace jax_cxl::cuda::flagged {

__device__ inline uint64_t ReleasedBy(const DeviceCall& call, int member) {
  const uint64_t word = AcquireWord(&call.members[member].flagged->released);
  const uint64_t tag = call.epoch << kValueBits;
  return (word & ~kValueMask) == tag ? word & kValueMask : 0;
}

// Waits until all peers have read the first `rounds` rounds. Called by a whole
// warp.
__device__ inline bool AwaitReleased(const DeviceCall& call, Shared& shared,
                                     uint64_t rounds) {
  return AwaitMembers(call, &shared.gave_up, [&](int member) {
    return ReleasedBy(call, member) >= rounds ? PollResult::kReady
                                              : PollResult::kNotReady;
  });
}

__device__ inline bool HearsAll(const Task& task) {
  return HearsAll(task.sources, task.call.num_members, task.call.self);
}

// Remembers how many rounds all peers have read, for later calls. Reading the
// peers' words crosses the link, so it does this only in some calls, and never
// in calls that receive from all peers (NoteRound). Called by a whole warp.
__device__ inline void NoteReleased(const Task& task, const Shared& shared) {
  const DeviceCall& call = task.call;
  if (HearsAll(task)) return;
  if (shared.released + kFlaggedSlots / 2 > call.base_round) return;
  uint64_t least = ~uint64_t{0};
  for (int member = LaneInWarp(); member < call.num_members; member += 32)
    if (member != call.self) least = min(least, ReleasedBy(call, member));
  least = LeastInWarp(least);
  if (LaneInWarp() == 0 && least > call.scratch->flagged_released)
    call.scratch->flagged_released = least;
}

// Does the same at the end of a call. Called by one thread.
__device__ inline void NoteRound(const Task& task, const Shared& shared) {
  const DeviceCall& call = task.call;
  if (HearsAll(task) && shared.released < call.base_round)
    call.scratch->flagged_released = call.base_round;
}

// Waits until all members from which this one receives are in the same call.
// Called by a whole warp.
__device__ inline bool AwaitCalls(const Task& task, Shared& shared) {
  const DeviceCall& call = task.call;
  const uint64_t expected = ExpectedCall(call);
  return AwaitMembers(call, &shared.gave_up, [&](int member) {
    if ((task.sources >> member & 1) == 0) return PollResult::kReady;
    const uint64_t word = LoadWord(&task.rings[member]->calls[SlotOf(call)]);
    if (word == expected) return PollResult::kReady;
    if ((word & ~kValueMask) != (expected & ~kValueMask))
      return PollResult::kNotReady;
    Report(call.status, DeviceFault::kMismatch, member);
    return PollResult::kFault;
  });
}

}  // namespace jax_cxl::cuda::flagged

#endif  // JAX_CXL_ENGINE_CUDA_FLAGGED_FLAGGED_PEERS_CUH_
