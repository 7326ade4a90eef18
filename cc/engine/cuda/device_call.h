#ifndef JAX_CXL_ENGINE_CUDA_DEVICE_CALL_H_
#define JAX_CXL_ENGINE_CUDA_DEVICE_CALL_H_

#include <cstddef>
#include <cstdint>

#include "cc/base/dtype.h"
#include "cc/engine/gpu_program/program.h"
#include "cc/plan/gpu_geometry.h"
#include "cc/pool/layout/channel_layout.h"
#include "cc/pool/layout/layout.h"

// What kernels and host share. Words that a kernel polls or rings lie in the
// pool, which is mapped into the devices' address space, one writer each.
namespace jax_cxl::cuda {

inline constexpr int kMaxBlocks = 64;   // thread blocks of one call
inline constexpr int kMaxMembers = 64;  // ranks of a group
inline constexpr uint32_t kMaxDataWarps = 16;
inline constexpr uint32_t kMaxThreads = 32 * kMaxDataWarps;
inline constexpr int kCallWords = 15;
static_assert(kCallWords > pool::kMaxSlots);

// How many thread blocks execute a call, and how many threads of each block
// send and receive: kMaxThreads together at most. Every rank of a group has the
// same number of blocks.
struct Shape {
  // A power of two, at most kMaxBlocks.
  uint32_t blocks = plan::kGpuBlocks;
  uint32_t sending_threads = 64;  // multiples of 32
  uint32_t receiving_threads = 448;

  constexpr uint32_t sending_warps() const { return sending_threads / 32; }
  constexpr uint32_t data_warps() const {
    return (sending_threads + receiving_threads) / 32;
  }
};

// What block b of a member says to block b of the others. Which call a round
// belongs to stands beside the doorbell: a member can be ahead by as many calls
// as there are slots, so that no word is overwritten while a peer needs it.
struct alignas(pool::kLineBytes) SendLine {
  uint64_t published;          // a doorbell word
  uint64_t calls[kCallWords];  // of call c at c % kCallWords: CallWord
};
static_assert(sizeof(SendLine) == pool::kLineBytes);

// The number of a call or round, and a hash of what else the members must agree
// on, in one word: as a doorbell has its epoch and its value.
using pool::kValueBits;
using pool::kValueMask;
constexpr uint64_t CallWord(uint64_t number, uint64_t hash) {
  return number << kValueBits | (hash & kValueMask);
}

// What a member's host says about a call that it enqueued: the last kJournal of
// them stay readable, so that a disagreement can be put in words.
inline constexpr uint64_t kJournal = 256;
struct alignas(pool::kLineBytes) JournalEntry {
  uint64_t ready;  // a doorbell word: number of the call + 1
  pool::CallDescriptor descriptor;
  char name[64];  // what the user wrote, zero-terminated
};
static_assert(sizeof(JournalEntry) == pool::kLineBytes);

// A member's ring for short messages (see flagged.h).
inline constexpr int kFlaggedSlots = plan::kFlaggedSlots;
struct alignas(pool::kLineBytes) FlaggedControl {
  uint64_t released;              // a doorbell word: rounds
  uint64_t calls[kFlaggedSlots];  // of round r at r % kFlaggedSlots: CallWord
  alignas(pool::kLineBytes) std::byte
      lines[kFlaggedSlots][plan::kFlaggedExpansion * plan::kFlaggedBytes];
};

// A member's control block on a channel between GPUs.
struct DeviceControl {
  SendLine send[kMaxBlocks];
  pool::Doorbell released[kMaxBlocks];
  // Rounds of calls that are over, which all blocks have released.
  pool::Doorbell ended;
  JournalEntry journal[kJournal];
  FlaggedControl flagged;
};

// One member's part of a channel as the devices of this process see it.
struct MemberView {
  SendLine* send;
  pool::Doorbell* released;
  uint64_t* ended;
  FlaggedControl* flagged;
  std::byte* slots[pool::kMaxSlots];
};

enum class DeviceFault : uint32_t {
  kNone = 0,
  kTimeout = 1,   // a wait outlasted its deadline
  kMismatch = 2,  // a peer is in another call
};

// What a device and its host tell each other about a channel, in pinned memory
// of the host. One writer a word.
struct alignas(128) DeviceStatus {
  // Host: 1 ends every wait. Kernels then stop the device (see executor.h).
  uint32_t abort;
  alignas(128) uint64_t finished;  // device: calls done
  uint64_t started;                // device: calls begun
  uint64_t busy_ns;                // device: time spent in calls
  uint32_t waiting_for;            // device: member + 1; 0 for none
  uint32_t fault;                  // device: a DeviceFault
  uint32_t fault_member;           // device: whom it is about
};

// What the blocks of a call share, in device memory; all zero at first.
struct DeviceScratch {
  uint32_t blocks_done;  // 0 between calls
  uint64_t busy_ns;
  uint64_t flagged_released;  // rounds that all peers are known to have read
};

// One call of one rank, as kernels and the host work on it.
struct DeviceCall {
  const DeviceStep* sending = nullptr;    // device memory
  const DeviceStep* receiving = nullptr;  // device memory
  uint32_t num_sending = 0;
  uint32_t num_receiving = 0;
  const MemberView* members = nullptr;  // device memory
  int32_t num_members = 0;
  int32_t self = 0;
  uint32_t num_slots = 0;
  uint32_t unit_bytes = 0;  // as in Stripes
  uint32_t slot_step = 0;
  uint64_t base_round = 0;  // rounds of all calls before
  uint64_t rounds = 0;      // of this one
  // Rounds that a kernel puts ahead of its bells, 1 or 2.
  uint32_t rounds_ahead = 1;
  uint64_t epoch = 0;
  uint64_t call = 0;  // number of this call in the channel
  uint64_t hash = 0;  // of its descriptor and number
  const std::byte* input = nullptr;
  std::byte* output = nullptr;
  DType dtype = DType::kUint8;
  ReduceOp reduce_op = ReduceOp::kSum;
  DeviceStatus* status = nullptr;
  DeviceScratch* scratch = nullptr;
  uint64_t timeout_ns = 0;  // of one wait
};

}  // namespace jax_cxl::cuda

#endif  // JAX_CXL_ENGINE_CUDA_DEVICE_CALL_H_
