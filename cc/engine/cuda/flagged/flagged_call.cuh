#ifndef JAX_CXL_ENGINE_CUDA_FLAGGED_FLAGGED_CALL_CUH_
#define JAX_CXL_ENGINE_CUDA_FLAGGED_FLAGGED_CALL_CUH_

#include <cstdint>

#include "cc/engine/cuda/block.cuh"
#include "cc/engine/cuda/counted.cuh"
#include "cc/engine/cuda/device_memory.cuh"
#include "cc/engine/cuda/flagged/flagged_peers.cuh"
#include "cc/engine/cuda/flagged/flagged_reduce.cuh"
#include "cc/engine/cuda/flagged/flagged_units.cuh"
#include "cc/engine/cuda/progress.cuh"

// A short message (flagged.h), as the threads of a block execute it. Besides
// the warps that move data, one warp watches the peers' words.
namespace jax_cxl::cuda::flagged {

__device__ inline bool Get(const Task& task, Shared& shared,
                           const Units& units) {
  const DeviceCall& call = task.call;
  const ShortStep& step = units.step();
  uint4 data;
  if (!Await(task, shared, step.first, step.from + units.i(), &data))
    return false;
  StoreLocal(call.output + step.to + units.i(), data, units.left());
  return true;
}

// Does the work of a data thread after the puts: copies, zeros, gets and
// reductions. Returns false when the call cannot continue.
__device__ inline bool Receive(const Task& task, Shared& shared) {
  const DeviceCall& call = task.call;
  const auto sending = [&](DeviceStepKind kind) {
    return Units(task.sending, task.num_sending, kind);
  };
  const auto receiving = [&](DeviceStepKind kind) {
    return Units(task.receiving, task.num_receiving, kind);
  };
  for (Units u = sending(DeviceStepKind::kCopy); u.has(); u.Next()) {
    const std::byte* from = call.input + u.step().from + u.i();
    std::byte* to = call.output + u.step().to + u.i();
    if (from != to) StoreLocal(to, LoadLocal(from, u.left()), u.left());
  }
  for (Units u = sending(DeviceStepKind::kZero); u.has(); u.Next())
    StoreLocal(call.output + u.step().to + u.i(), make_uint4(0, 0, 0, 0),
               u.left());
  for (Units u = receiving(DeviceStepKind::kGet); u.has(); u.Next())
    if (!Get(task, shared, u)) return false;
  for (Units u = receiving(DeviceStepKind::kReduce); u.has(); u.Next())
    if (!Reduce(task, shared, u)) return false;
  return true;
}

// This thread's part of the puts. Its first load starts in the constructor,
// before the thread knows the number of the call, and before it knows that the
// slot is free.
class Puts {
 public:
  __device__ Puts(const std::byte* input, const ShortStep* sending,
                  uint32_t num_sending)
      : input_(input), units_(sending, num_sending, DeviceStepKind::kPut) {
    if (threadIdx.x < kThreads && units_.has()) Load();
  }

  __device__ void Run(const Task& task) {
    while (units_.has()) {
      UnitVectors(task, task.call.self, units_.step().to + units_.i())
          .Store(data_, FlagOf(task.call));
      units_.Next();
      if (units_.has()) Load();
    }
  }

 private:
  __device__ void Load() {
    data_ = LoadLocal(input_ + units_.step().from + units_.i(), units_.left());
  }

  const std::byte* input_;
  Units units_;
  uint4 data_ = {};
};

// Returns true if all peers have read what an earlier call put into the slot of
// this call. `released` is the number of rounds that they have certainly read.
__device__ inline bool SlotIsFree(const DeviceCall& call, uint64_t released) {
  return released + kFlaggedSlots > call.base_round;
}

// Initializes `shared`. Called by all threads of a block. Unless `known` is
// true, one of them loads what earlier calls have noted about the peers, and
// none of them waits for this load here. If it is true, the host knows enough.
__device__ inline void Begin(const DeviceCall& call, Shared& shared,
                             bool known = false) {
  if (threadIdx.x != kThreads) return;
  shared.gave_up = 0;
  shared.released =
      known ? call.flagged_released : call.scratch->flagged_released;
}

// Names the call, and puts this thread's data. Call it once the slot is free.
// The word that names the call replaces the word of the call that used this
// slot before. A peer that had not yet read the slot might still have needed
// the old word.
__device__ inline void Put(const Task& task, FlaggedControl& mine, Puts& puts) {
  // The data threads do not store the word, because it would delay their data.
  if (threadIdx.x == kThreads && blockIdx.x == 0)
    StoreWord(&mine.calls[SlotOf(task.call)], ExpectedCall(task.call));
  if (threadIdx.x < kThreads) puts.Run(task);
}

// Executes the call, once all threads of the block can see the contents of
// `shared`. `has_put` is true if Put was called before. `done` is false if an
// earlier step of the block has failed. Returns false if the call cannot
// complete.
template <bool counted>
__device__ inline bool Run(const Task& task, FlaggedControl& mine,
                           Shared& shared, Puts& puts, bool has_put,
                           bool done) {
  const DeviceCall& call = task.call;
  const uint32_t warp = threadIdx.x / 32;
  const bool data = warp < kThreads / 32, watches = warp == kThreads / 32;
  const bool notes = warp == kThreads / 32 + 1;
  if (done && !has_put) {
    if (!SlotIsFree(call, shared.released)) {
      if (watches)
        done = AwaitReleased(call, shared, call.base_round + 1 - kFlaggedSlots);
      done = !__syncthreads_or(!done);
    }
    if (done) Put(task, mine, puts);
  }
  if (done && data) {
    done = Receive(task, shared);
  } else if (done && watches && blockIdx.x == 0) {
    done = AwaitCalls(task, shared);
  } else if (done && notes && blockIdx.x == 0) {
    if constexpr (counted) WriteJournal(call);
    NoteReleased(task, shared);
  }
  return !__syncthreads_or(!done);
}

__device__ inline void StoreReleased(const DeviceCall& call,
                                     FlaggedControl& mine) {
  StoreWord(&mine.released, call.epoch << kValueBits | (call.base_round + 1));
}

// The round whose flag would be 0 moves no data. Instead, all members clear
// their rings, as hosts do (cc/gpu/relay/flagged_relay.h). Called by all
// threads of a block.
__device__ inline bool BeginAnew(const Task& task, Shared& shared,
                                 DeviceCall* call) {
  FlaggedControl& mine = *task.rings[call->self];
  const uint64_t round = call->base_round;
  bool done = true;
  if (blockIdx.x == 0) {
    if (threadIdx.x < 32) done = AwaitReleased(*call, shared, round);
    if (__syncthreads_or(!done)) return false;
    auto* vectors = reinterpret_cast<uint4*>(mine.vectors);
    const uint64_t bytes = FlaggedRingBytes(call->flagged_slot_bytes);
    for (uint32_t i = threadIdx.x; i < bytes / sizeof(uint4); i += blockDim.x)
      vectors[i] = make_uint4(0, 0, 0, 0);
    __syncthreads();
    if (threadIdx.x == 0) {
      FenceSystem();
      StoreWord(&mine.released, call->epoch << kValueBits | (round + 1));
    }
  } else if (threadIdx.x == 0) {
    // This block also stores to the ring, so it waits until the first block has
    // cleared the ring.
    const volatile DeviceStatus* status = call->status;
    while (done && ReleasedBy(*call, call->self) < round + 1)
      done = status->abort == 0;
  }
  if (__syncthreads_or(!done)) return false;
  if (threadIdx.x < 32) done = AwaitReleased(*call, shared, round + 1);
  if (__syncthreads_or(!done)) return false;
  if (threadIdx.x == 0) {
    shared.released = round + 1;
    call->base_round = round + 1;
  }
  __syncthreads();
  return true;
}

// Executes a call that is numbered on the device (LaunchCounted in executor.h).
// Call Begin and TakePosition first. `call` is the call of `task`.
__device__ inline void RunCounted(const Task& task, Shared& shared,
                                  DeviceCall* call, Puts& puts) {
  const KernelProgress progress(*call);
  FlaggedControl& mine = *task.rings[call->self];
  const bool done =
      !BeginsAnew(call->base_round) || BeginAnew(task, shared, call);
  if (!Run</*counted=*/true>(task, mine, shared, puts, /*has_put=*/false,
                             done)) {
    if (threadIdx.x == 0) AwaitAbort(*call);
    return;
  }
  if (threadIdx.x == 0 && progress.Finish()) {
    PassPosition(*call, /*flagged=*/true);
    NoteRound(task, shared);
    StoreReleased(*call, mine);
  }
}

}  // namespace jax_cxl::cuda::flagged

#endif  // JAX_CXL_ENGINE_CUDA_FLAGGED_FLAGGED_CALL_CUH_
