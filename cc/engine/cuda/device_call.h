#ifndef JAX_CXL_ENGINE_CUDA_DEVICE_CALL_H_
#define JAX_CXL_ENGINE_CUDA_DEVICE_CALL_H_

#include <array>
#include <cstddef>
#include <cstdint>

#include "cc/base/dtype.h"
#include "cc/engine/gpu_plan/channel_words.h"
#include "cc/engine/gpu_plan/gpu_plan.h"
#include "cc/engine/gpu_plan/shape.h"
#include "cc/plan/gpu_geometry.h"
#include "cc/plan/slices.h"
#include "cc/pool/layout/layout.h"

// Structures that kernels and host share. The words that a kernel polls or
// rings are in the pool, which is mapped into the devices' address space. Each
// word has one writer.
namespace jax_cxl::cuda {

enum class DeviceFault : uint32_t {
  kNone = 0,
  kTimeout = 1,   // a wait took longer than its deadline
  kMismatch = 2,  // a peer is in another call
  kSlices = 3,    // the slices of a ragged_all_to_all are wrong
};

// The bytes of rows that the device has moved. Only the device knows which rows
// of a call move.
struct RowBytes {
  uint64_t published;
  uint64_t retrieved;
};

// The words by which a device and its host communicate about a channel, in
// pinned memory of the host. Each word has one writer.
struct alignas(128) DeviceStatus {
  // Written by the host: 1 ends every wait. Kernels then stop the device
  // (executor.h), unless their calls are numbered on the device.
  uint32_t abort;
  alignas(128) uint64_t finished;  // device: number of finished calls
  uint64_t started;                // device: number of started calls
  uint64_t busy_ns;                // device: time spent in calls
  RowBytes row_bytes;              // device: moved so far
  uint32_t waiting_for;            // device: member + 1; 0 for none
  uint32_t fault;                  // device: a DeviceFault
  uint32_t fault_member;           // device: the member that the fault concerns
  plan::SliceFault slice_fault;    // device: with kSlices
};

// The position of a channel whose calls are numbered on the device
// (LaunchCounted in executor.h): the numbers of the next call.
struct DevicePosition {
  uint64_t calls;
  uint64_t hash;  // of the descriptors of all calls so far
  uint64_t rounds;
  uint64_t flagged_rounds;
  // Not 0 once a call has been given up. Later calls then do nothing: they
  // would get the number of the call that was given up, so peers would mistake
  // their words and data for those of that call.
  uint32_t stopped;
};

// The state that the blocks of a call share, in device memory. All zero at
// first.
struct DeviceScratch {
  uint32_t blocks_done;  // 0 between calls
  uint64_t busy_ns;
  uint64_t flagged_released;      // rounds that all peers have certainly read
  uint64_t released[kMaxBlocks];  // the same for the slots, for each block
  RowBytes row_bytes;
  DevicePosition position;
};

// One call of one rank, for kernels and the host.
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
  uint64_t base_round = 0;  // rounds of all earlier calls
  uint64_t rounds = 0;      // of this call
  // How many rounds a thread block puts before it waits for the doorbell of the
  // first of them: 1 or 2. The first number is for blocks with even numbers,
  // and the second for blocks with odd numbers.
  std::array<uint32_t, 2> rounds_ahead = {1, 1};
  uint64_t epoch = 0;
  uint64_t call = 0;  // number of this call in the channel
  uint64_t hash = 0;  // of the descriptors of this call and all before it
  const std::byte* input = nullptr;
  std::byte* output = nullptr;
  DType dtype = DType::kUint8;
  ReduceOp reduce_op = ReduceOp::kSum;
  DeviceStatus* status = nullptr;
  DeviceScratch* scratch = nullptr;
  uint64_t timeout_ns = 0;  // of one wait
  uint32_t divisor = 0;     // of the results of a reduction; 0: none
  uint32_t flagged_slot_bytes = plan::kFlaggedBytes;
  // Rounds of short messages that all peers have read when this call begins, as
  // far as the host knows.
  uint64_t flagged_released = 0;
  // For a premultiplied sum (premultiplied/premultiplied.h): the size of the
  // factor in bytes. The factor is in device memory at `factor_at` or, if that
  // is null, in `factor`.
  uint32_t factor_bytes = 0;  // 0: another call
  const void* factor_at = nullptr;
  uint64_t factor = 0;

  // A call that is numbered on the device also has these fields. The kernel
  // sets base_round, call and hash from DeviceScratch::position.
  uint64_t descriptor_hash = 0;          // of this call alone
  const JournalEntry* record = nullptr;  // what the kernel writes down
  JournalEntry* journal = nullptr;       // this member's journal, in the pool
};

}  // namespace jax_cxl::cuda

#endif  // JAX_CXL_ENGINE_CUDA_DEVICE_CALL_H_
