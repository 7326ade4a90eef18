#ifndef JAX_CXL_ENGINE_CUDA_BLOCK_CUH_
#define JAX_CXL_ENGINE_CUDA_BLOCK_CUH_

#include <cstdint>

#include "cc/engine/cuda/device_call.h"
#include "cc/engine/cuda/device_memory.cuh"

// The warps of one thread block that execute a call, and how they wait.
//
// Each direction, sending and receiving, has its own list of steps and its own
// warps. Data warps move bytes, and wait only for this block's shared memory.
// Control warps do the operations that take a round trip over the link. One
// control warp of a direction waits for the peers, ahead of the data warps, and
// marks the steps as ready one after another. Another one follows the data
// warps, and rings a doorbell when all of them have done a step.
namespace jax_cxl::cuda {

enum Direction : uint32_t { kSending = 0, kReceiving = 1 };

// How long a kernel with a fault waits for the host to publish the reason.
inline constexpr uint64_t kAbortWaitNs = 5000000000;

// Waits until the host has published the reason of a fault, but at most
// kAbortWaitNs. Then stops the device (see Launch).
__device__ inline void Stop(const DeviceStatus* status) {
  const volatile DeviceStatus* said = status;
  const uint64_t start = NowNs();
  while (said->abort == 0 && NowNs() - start < kAbortWaitNs) __nanosleep(10000);
  __trap();
}

__device__ inline void Report(volatile DeviceStatus* status, DeviceFault fault,
                              int member) {
  status->fault_member = member;
  __threadfence_system();
  status->fault = static_cast<uint32_t>(fault);
}

__device__ __forceinline__ uint32_t LaneInWarp() { return threadIdx.x % 32; }

__device__ __forceinline__ uint64_t LeastInWarp(uint64_t value) {
  for (int distance = 16; distance > 0; distance /= 2)
    value = min(value, __shfl_xor_sync(0xffffffff, value, distance));
  return value;
}

// The result of polling a member's words.
enum class PollResult { kReady, kNotReady, kFault };

// Called by a whole warp, whose threads divide the members among them. Polls
// until `poll(member)` is kReady for all members except this one. Returns false
// when the call cannot continue, and sets `gave_up` for the other warps of the
// block.
template <typename PollMember>
__device__ bool AwaitMembers(const DeviceCall& call, uint32_t* gave_up,
                             const PollMember& poll) {
  constexpr int kPollsPerCheck = 64;
  constexpr uint64_t kLongWaitNs = 1000000;
  const int thread = static_cast<int>(LaneInWarp());
  uint64_t start = 0;
  bool reported = false;
  for (int polls = 1;; ++polls) {
    int behind = -1;
    bool stop = false;
    for (int member = thread; member < call.num_members; member += 32) {
      if (member == call.self) continue;
      const PollResult seen = poll(member);
      if (seen != PollResult::kReady) behind = member;
      stop |= seen == PollResult::kFault;
    }
    const unsigned waiting = __ballot_sync(0xffffffff, behind >= 0);
    if (waiting == 0) {
      if (reported && thread == 0) call.status->waiting_for = 0;
      return true;
    }
    if (polls % kPollsPerCheck == 0) {
      const int late = __shfl_sync(0xffffffff, behind, __ffs(waiting) - 1);
      const uint64_t now = NowNs();
      if (start == 0) start = now;
      const uint64_t waited =
          __shfl_sync(0xffffffff, now > start ? now - start : 0, 0);
      if (waited > kLongWaitNs && !reported) {
        reported = true;
        if (thread == 0) call.status->waiting_for = late + 1;
      }
      if (thread == 0) {
        const volatile DeviceStatus* status = call.status;
        stop |= status->abort != 0 || LoadAcquireBlock(gave_up) != 0;
        if (!stop && waited > call.timeout_ns) {
          Report(call.status, DeviceFault::kTimeout, late);
          stop = true;
        }
      }
    }
    if (!__any_sync(0xffffffff, stop)) continue;
    if (thread == 0) StoreReleaseBlock(gave_up, 1);
    return false;
  }
}

// State in the block's shared memory.
struct BlockState {
  // The last values seen in each member's words, which only grow. Only one warp
  // uses each of these arrays.
  uint64_t published[kMaxMembers];
  uint64_t released[2][kMaxMembers];
  // StoreReleaseBlock writes these, and LoadAcquireBlock reads them:
  uint32_t ready[2];             // number of steps that data warps may begin
  uint32_t done[kMaxDataWarps];  // number of steps that a data warp has done
  uint32_t rung;  // number of sending steps up to the last doorbell
  // 1 once a warp has found that the call cannot continue. All other warps then
  // leave.
  uint32_t gave_up;

  // Resets the state for a call. Called by all threads of the block, before a
  // barrier. `known` is a number of rounds that all peers have certainly read.
  __device__ void Reset(uint64_t known) {
    for (uint32_t i = threadIdx.x; i < kMaxMembers; i += blockDim.x) {
      published[i] = 0;
      released[0][i] = released[1][i] = known;
    }
    for (uint32_t i = threadIdx.x; i < kMaxDataWarps; i += blockDim.x)
      done[i] = 0;
    if (threadIdx.x != 0) return;
    ready[kSending] = 0;
    ready[kReceiving] = 0;
    rung = 0;
    gave_up = 0;
  }
};

// One of the warps that move the bytes of a direction. All threads of the warp
// call these functions.
class DataWarp {
 public:
  // Warp `index` of the direction's `warps` warps, and data warp `slot` of the
  // block.
  __device__ DataWarp(BlockState& state, Direction direction, uint32_t slot,
                      uint32_t index, uint32_t warps)
      : state_(state),
        direction_(direction),
        slot_(slot),
        thread_(index * 32 + LaneInWarp()),
        threads_(warps * 32) {}

  // This thread's index among the threads of the direction, for the next step.
  __device__ uint32_t thread() const { return thread_; }
  __device__ uint32_t threads() const { return threads_; }

  // Call it after a step of this many vectors. The warps of a direction take
  // vectors in turn. The next step starts with the warp after the one that had
  // the last vector, so a short step leaves the other warps free for the next
  // steps.
  __device__ void Rotate(uint32_t vectors) {
    const uint32_t whole_warps = (vectors + 31) / 32 * 32;
    thread_ = (thread_ + threads_ - whole_warps % threads_) % threads_;
  }

  // Waits until step `at` may begin. Returns false when the call cannot
  // continue.
  __device__ bool AwaitReady(uint32_t at) const {
    bool go_on = true;
    if (LaneInWarp() == 0) {
      while (go_on && LoadAcquireBlock(&state_.ready[direction_]) <= at)
        go_on = LoadAcquireBlock(&state_.gave_up) == 0;
    }
    return __shfl_sync(0xffffffff, go_on, 0);
  }

  // Marks step `at` as done. A reader of the mark sees all that the warp has
  // done.
  __device__ void Done(uint32_t at) const {
    __syncwarp();
    if (LaneInWarp() == 0) StoreReleaseBlock(&state_.done[slot_], at + 1);
  }

 private:
  BlockState& state_;
  const Direction direction_;
  const uint32_t slot_;
  uint32_t thread_;
  const uint32_t threads_;
};

// One warp that waits for peers or for data warps, and rings doorbells. All
// threads of the warp call these functions. Functions that wait return false
// when the call cannot continue.
class ControlWarp {
 public:
  // `index` is the index of the doorbells that this warp rings and waits for.
  // It is the number of the thread block, because each block has its own
  // doorbells.
  __device__ ControlWarp(const DeviceCall& call, BlockState& state,
                         Direction direction, uint32_t index)
      : call_(call),
        state_(state),
        direction_(direction),
        doorbell_index_(index),
        tag_(call.epoch << kValueBits) {}

  // Waits until members [first, last), except this one, have published the
  // first `rounds` rounds.
  __device__ bool AwaitPublished(int first, int last, uint64_t rounds) {
    return AwaitMembers(call_, &state_.gave_up, [&](int member) {
      if (member < first || member >= last) return PollResult::kReady;
      return Published(member, rounds);
    });
  }

  // Waits until this member's slot for `round` is free: no peer reads its old
  // contents.
  __device__ bool AwaitSlot(uint64_t round) {
    if (round < call_.num_slots) return true;
    const uint64_t rounds = round + 1 - call_.num_slots;
    return AwaitMembers(call_, &state_.gave_up,
                        [&](int member) { return Released(member, rounds); });
  }

  // Remembers how many rounds all peers have read. So the next call knows that
  // its first slots are free, and need not ask for this over the link.
  __device__ void NoteReleased() {
    uint64_t least = ~uint64_t{0};
    for (int member = static_cast<int>(LaneInWarp());
         member < call_.num_members; member += 32) {
      if (member == call_.self) continue;
      uint64_t& seen = state_.released[direction_][member];
      SeeReleased(&call_.members[member].released[doorbell_index_].word, seen);
      least = min(least, seen);
    }
    least = LeastInWarp(least);
    if (LaneInWarp() == 0) call_.scratch->released[doorbell_index_] = least;
  }

  // Waits until all members have finished all earlier calls.
  __device__ bool AwaitEnd() {
    return AwaitMembers(call_, &state_.gave_up, [&](int member) {
      uint64_t& seen = state_.released[direction_][member];
      SeeReleased(call_.members[member].ended, seen);
      return seen >= call_.base_round ? PollResult::kReady
                                      : PollResult::kNotReady;
    });
  }

  // Lets the data warps of the direction do the first `steps` steps.
  __device__ void MarkReady(uint32_t steps) const {
    __syncwarp();
    if (LaneInWarp() == 0) StoreReleaseBlock(&state_.ready[direction_], steps);
  }

  // Waits until data warps [first, last) of the block have done `steps` steps.
  __device__ bool AwaitDone(uint32_t first, uint32_t last,
                            uint32_t steps) const {
    const uint32_t slot = first + LaneInWarp();
    return AwaitInBlock([&] {
      return slot >= last || LoadAcquireBlock(&state_.done[slot]) >= steps;
    });
  }

  // Waits until the doorbell of sending step `steps` - 1 has rung. Does not
  // wait if `steps` is 0.
  __device__ bool AwaitRung(uint32_t steps) const {
    return AwaitInBlock([&] {
      return LaneInWarp() != 0 || LoadAcquireBlock(&state_.rung) >= steps;
    });
  }

  __device__ void MarkRung(uint32_t steps) const {
    if (LaneInWarp() == 0) StoreReleaseBlock(&state_.rung, steps);
  }

  // Rings a doorbell. Readers of the word see all earlier work.
  __device__ void Ring(uint64_t* word, uint64_t value) const {
    __syncwarp();
    if (LaneInWarp() != 0) return;
    FenceSystem();
    StoreWord(word, tag_ | value);
  }

 private:
  // Waits until `done` returns true in all threads of the warp.
  template <typename Done>
  __device__ __forceinline__ bool AwaitInBlock(const Done& done) const {
    for (;;) {
      if (__all_sync(0xffffffff, done())) return true;
      const bool stop =
          LaneInWarp() == 0 && LoadAcquireBlock(&state_.gave_up) != 0;
      if (__any_sync(0xffffffff, stop)) return false;
    }
  }

  __device__ PollResult Published(int member, uint64_t rounds) {
    uint64_t& seen = state_.published[member];
    if (seen >= rounds) return PollResult::kReady;
    const SendLine& line = call_.members[member].send[doorbell_index_];
    const uint64_t expected = CallWord(call_.call, call_.hash);
    // The following two loads are in flight at the same time. The peer names
    // its call before it publishes any round of the call. So if `call` was
    // loaded too early, load it again after the publication has been seen. Once
    // a round of this call has been seen, the peer's call is known to be right.
    uint64_t call =
        seen > 0 ? expected : LoadWord(&line.calls[call_.call % kCallWords]);
    const uint64_t word = AcquireWord(&line.published);
    if ((word & ~kValueMask) != tag_ || (word & kValueMask) < rounds)
      return PollResult::kNotReady;
    if (call != expected) call = LoadWord(&line.calls[call_.call % kCallWords]);
    if (call != expected) {
      Report(call_.status, DeviceFault::kMismatch, member);
      return PollResult::kFault;
    }
    seen = word & kValueMask;
    return PollResult::kReady;
  }

  __device__ PollResult Released(int member, uint64_t rounds) {
    uint64_t& seen = state_.released[direction_][member];
    if (seen >= rounds) return PollResult::kReady;
    const MemberView& view = call_.members[member];
    SeeReleased(&view.released[doorbell_index_].word, seen);
    // If an earlier call used the copy engines, it has released its rounds with
    // other doorbells. But `ended` counts the rounds of all calls that have
    // ended, so read it too.
    if (seen < rounds && rounds <= call_.base_round)
      SeeReleased(view.ended, seen);
    return seen >= rounds ? PollResult::kReady : PollResult::kNotReady;
  }

  __device__ void SeeReleased(const uint64_t* word, uint64_t& seen) {
    const uint64_t now = AcquireWord(word);
    if ((now & ~kValueMask) == tag_ && (now & kValueMask) > seen)
      seen = now & kValueMask;
  }

  const DeviceCall& call_;
  BlockState& state_;
  const Direction direction_;
  const uint32_t doorbell_index_;
  const uint64_t tag_;
};

}  // namespace jax_cxl::cuda

#endif  // JAX_CXL_ENGINE_CUDA_BLOCK_CUH_
