#ifndef JAX_CXL_ENGINE_CUDA_BLOCK_CUH_
#define JAX_CXL_ENGINE_CUDA_BLOCK_CUH_

#include <cstdint>

#include "cc/engine/cuda/device_call.h"
#include "cc/engine/cuda/device_memory.cuh"

// One thread block at work on a call: its lanes and how they wait.
namespace jax_cxl::cuda {

enum Lane : uint32_t { kSending = 0, kReceiving = 1 };

inline constexpr uint32_t kNever = 0xffffffff;

// How long a kernel that has found a fault waits for the host to say why.
inline constexpr uint64_t kPatienceNs = 5000000000;

// Stops the device: see Launch.
__device__ inline void Stop(const DeviceStatus* status) {
  const volatile DeviceStatus* said = status;
  const uint64_t start = NowNs();
  while (said->abort == 0 && NowNs() - start < kPatienceNs) __nanosleep(10000);
  __trap();
}

// In the block's shared memory.
struct BlockState {
  // The last value seen of each member's words: they only grow. Each is used by
  // one warp of one lane, and by one thread of it.
  uint64_t published[kMaxMembers];
  uint64_t released[2][kMaxMembers];
  // Receiving steps that are done, for sending steps that depend on them.
  volatile uint32_t received;
  // The step of each lane at which its first warp gave up; kNever while all is
  // well. Threads compare it with the step that they are at, so that all leave
  // the lane after the same barrier.
  volatile uint32_t gave_up_at[2];

  // By all threads of the block, before a barrier.
  __device__ void Reset() {
    for (uint32_t i = threadIdx.x; i < kMaxMembers; i += blockDim.x) {
      published[i] = 0;
      released[0][i] = released[1][i] = 0;
    }
    if (threadIdx.x != 0) return;
    received = 0;
    gave_up_at[kSending] = kNever;
    gave_up_at[kReceiving] = kNever;
  }
};

// A lane of this block: a group of warps that executes one list of steps.
class LaneContext {
 public:
  // `line`: which of the members' doorbells it rings and waits for.
  __device__ LaneContext(const DeviceCall& call, BlockState& state, Lane lane,
                         uint32_t line, uint32_t thread, uint32_t threads)
      : call_(call),
        state_(state),
        lane_(lane),
        line_(line),
        thread_(thread),
        threads_(threads),
        tag_(call.epoch << 48) {}

  __device__ uint32_t thread() const { return thread_; }
  __device__ uint32_t threads() const { return threads_; }

  // All threads of the lane, no others.
  __device__ void Barrier() const {
    asm volatile("bar.sync %0, %1;" ::"r"(lane_ + 1), "r"(threads_) : "memory");
  }

  // The following are called by all threads of the lane, at step `at`; false
  // when the call cannot go on.

  // Until members [first, last) but this one have published `rounds`.
  __device__ bool AwaitPublished(uint32_t at, int first, int last,
                                 uint64_t rounds) {
    return Await(at, [&](int member) {
      if (member < first || member >= last) return true;
      return Published(member, rounds);
    });
  }

  // Until my slot for `round` is free: no peer reads what it carried before.
  __device__ bool AwaitSlot(uint32_t at, uint64_t round) {
    if (round < call_.num_slots) return true;
    const uint64_t rounds = round + 1 - call_.num_slots;
    return Await(at, [&](int member) { return Released(member, rounds); });
  }

  // Until the receiving lane has done `steps` steps.
  __device__ bool AwaitReceived(uint32_t at, uint32_t steps) {
    if (thread_ == 0) {
      while (state_.received < steps) {
        if (state_.gave_up_at[kReceiving] != kNever) {
          state_.gave_up_at[lane_] = at;
          break;
        }
      }
      __threadfence_block();
    }
    return Agree(at);
  }

  // Rings: what the lane's threads did before is visible before the word is.
  __device__ void Ring(uint64_t* word, uint64_t value) const {
    Barrier();
    if (thread_ != 0) return;
    FenceSystem();
    StoreWord(word, tag_ | value);
  }

 private:
  static constexpr int kPollsPerCheck = 64;
  static constexpr uint64_t kLongWaitNs = 1000000;

  __device__ bool Agree(uint32_t at) const {
    Barrier();
    return state_.gave_up_at[lane_] > at;
  }

  // Polls with the lane's first warp, a member a thread, until `there(member)`
  // is true for all members but this one.
  template <typename There>
  __device__ bool Await(uint32_t at, const There& there) {
    if (thread_ < 32) {
      if (!Poll(there) && thread_ == 0) state_.gave_up_at[lane_] = at;
      __syncwarp();
    }
    return Agree(at);
  }

  template <typename There>
  __device__ bool Poll(const There& there) {
    uint64_t start = 0;
    bool told = false;
    for (int polls = 1;; ++polls) {
      int behind = -1;
      for (int member = thread_; member < call_.num_members; member += 32)
        if (member != call_.self && !there(member)) behind = member;
      const unsigned waiting = __ballot_sync(0xffffffff, behind >= 0);
      if (waiting == 0) {
        if (told && thread_ == 0) call_.status->waiting_for = 0;
        return true;
      }
      if (polls % kPollsPerCheck != 0) continue;
      const int late = __shfl_sync(0xffffffff, behind, __ffs(waiting) - 1);
      const uint64_t now = NowNs();
      if (start == 0) start = now;
      const uint64_t waited =
          __shfl_sync(0xffffffff, now > start ? now - start : 0, 0);
      if (waited > kLongWaitNs && !told) {
        told = true;
        if (thread_ == 0) call_.status->waiting_for = late + 1;
      }
      bool stop = false;
      if (thread_ == 0) {
        const volatile DeviceStatus* status = call_.status;
        stop = status->abort != 0 || mismatch_;
        if (!stop && waited > call_.timeout_ns) {
          Fault(DeviceFault::kTimeout, late);
          stop = true;
        }
      }
      if (__any_sync(0xffffffff, stop || mismatch_)) return false;
    }
  }

  __device__ bool Published(int member, uint64_t rounds) {
    uint64_t& seen = state_.published[member];
    if (seen >= rounds) return true;
    const SendLine& line = call_.members[member].send[line_];
    const uint64_t word = LoadWord(&line.published);
    const uint64_t call = LoadWord(&line.calls[call_.call % kCallWords]);
    if ((word & ~kHashMask) != tag_ || (word & kHashMask) < rounds)
      return false;
    // The peer wrote which call this is before it published anything of it, but
    // both loads were under way at once.
    const uint64_t expected = CallWord(call_.call, call_.hash);
    if (call != expected && !SameCall(line, expected)) {
      Fault(DeviceFault::kMismatch, member);
      mismatch_ = true;
      return false;
    }
    seen = word & kHashMask;
    return true;
  }

  __device__ bool SameCall(const SendLine& line, uint64_t expected) const {
    FenceSystem();
    return LoadWord(&line.calls[call_.call % kCallWords]) == expected;
  }

  __device__ bool Released(int member, uint64_t rounds) {
    uint64_t& seen = state_.released[lane_][member];
    if (seen >= rounds) return true;
    const uint64_t word =
        AcquireWord(&call_.members[member].released[line_].word);
    if ((word & ~kHashMask) == tag_) seen = word & kHashMask;
    return seen >= rounds;
  }

  __device__ void Fault(DeviceFault fault, int member) const {
    volatile DeviceStatus* status = call_.status;
    status->fault_member = member;
    __threadfence_system();
    status->fault = static_cast<uint32_t>(fault);
  }

  const DeviceCall& call_;
  BlockState& state_;
  const Lane lane_;
  const uint32_t line_;
  const uint32_t thread_;
  const uint32_t threads_;
  const uint64_t tag_;
  bool mismatch_ = false;
};

}  // namespace jax_cxl::cuda

#endif  // JAX_CXL_ENGINE_CUDA_BLOCK_CUH_
