#ifndef JAX_CXL_ENGINE_CUDA_COUNTED_CUH_
#define JAX_CXL_ENGINE_CUDA_COUNTED_CUH_

#include <cstddef>
#include <cstdint>

#include "cc/engine/cuda/block.cuh"
#include "cc/engine/cuda/device_call.h"
#include "cc/engine/cuda/device_memory.cuh"

// Calls whose numbers live in the memory of the device (LaunchCounted in
// executor.h).
namespace jax_cxl::cuda {

// Copies a call to shared memory and fills in its numbers. Returns false if the
// channel has stopped. Called by all threads of a block; ends with a barrier.
__device__ __forceinline__ bool TakePosition(const DeviceCall& given,
                                             bool flagged, DeviceCall* call) {
  static_assert(sizeof(DeviceCall) % sizeof(uint32_t) == 0);
  const auto* from = reinterpret_cast<const uint32_t*>(&given);
  auto* to = reinterpret_cast<uint32_t*>(call);
  // Start this load first, because it takes longer than the copy below.
  DevicePosition position = {};
  if (threadIdx.x == 0) position = given.scratch->position;
  for (uint32_t i = threadIdx.x; i < sizeof(DeviceCall) / sizeof(uint32_t);
       i += blockDim.x)
    to[i] = from[i];
  __syncthreads();
  const bool stopped = position.stopped != 0;
  if (threadIdx.x == 0) {
    call->call = position.calls;
    call->hash = ChainHash(position.hash, call->descriptor_hash);
    call->base_round = flagged ? position.flagged_rounds : position.rounds;
  }
  return !__syncthreads_or(stopped);
}

// Stores the position of the next call. Called by one thread, once every block
// has taken its position and ended.
__device__ __forceinline__ void PassPosition(const DeviceCall& call,
                                             bool flagged) {
  DevicePosition& position = call.scratch->position;
  position.calls = call.call + 1;
  position.hash = call.hash;
  if (flagged)
    position.flagged_rounds = call.base_round + 1;
  else
    position.rounds = call.base_round + call.rounds;
}

// Writes the call into this member's journal. Called by a whole warp.
__device__ __forceinline__ void WriteJournal(const DeviceCall& call) {
  constexpr uint32_t kWords = sizeof(JournalEntry) / sizeof(uint64_t);
  static_assert(offsetof(JournalEntry, ready) == 0);
  static_assert(kWords <= 32);
  JournalEntry* entry = &call.journal[call.call % kJournal];
  if (LaneInWarp() > 0 && LaneInWarp() < kWords)
    StoreWord(reinterpret_cast<uint64_t*>(entry) + LaneInWarp(),
              reinterpret_cast<const uint64_t*>(call.record)[LaneInWarp()]);
  __syncwarp();
  if (LaneInWarp() != 0) return;
  FenceSystem();
  StoreWord(&entry->ready, call.epoch << kValueBits | (call.call + 1));
}

// Waits until the host gives the call up. Then marks the channel as stopped, so
// that later calls do nothing.
__device__ inline void AwaitAbort(const DeviceCall& call) {
  const volatile DeviceStatus* said = call.status;
  while (said->abort == 0) __nanosleep(10000);
  call.scratch->position.stopped = 1;
}

}  // namespace jax_cxl::cuda

#endif  // JAX_CXL_ENGINE_CUDA_COUNTED_CUH_
