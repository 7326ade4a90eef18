#ifndef JAX_CXL_COMM_CALL_CALL_H_
#define JAX_CXL_COMM_CALL_CALL_H_

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "cc/base/dtype.h"
#include "cc/base/status.h"
#include "cc/engine/cpu/member_buffers.h"
#include "cc/engine/cpu/taken_rows.h"
#include "cc/plan/plan.h"
#include "cc/pool/layout/channel_layout.h"

namespace jax_cxl::comm {

using Clock = std::chrono::steady_clock;

// The ranks of one communicator, in its order. Ranks are indices into the
// world: the devices of the job.
struct Group {
  std::vector<int32_t> members;
  int self = 0;  // which member this rank is

  int rank() const { return members[self]; }
};

// Returns a hash that is the same for the same member list on every host.
uint64_t HashGroup(const std::vector<int32_t>& members);

// The further operands of an operation that moves rows, in the memory of a GPU.
struct RowOperands {
  // take_rows: the rows that this rank takes, and its own rows that others may
  // take (null: all of them).
  const int32_t* indices = nullptr;
  const uint8_t* published = nullptr;
  // ragged_all_to_all: this rank's table of slices (cc/plan/slices.h), of 4- or
  // 8-byte integers.
  const void* slices = nullptr;
  uint32_t slice_entry_bytes = 0;
  void* scratch = nullptr;  // cuda::RowScratchBytes
};

// A collective call that a rank has started.
struct Call {
  // All ranks use the same identity for one call (see cc/ffi/call/call_site.h).
  // Two calls of a group have different identities, unless one call has ended
  // on every rank before any rank starts the other.
  uint64_t identity = 0;
  uint64_t number = 0;  // counts the rank's calls from 1; set by its Recorder
  plan::Request request;
  DType dtype = DType::kUint8;
  ReduceOp reduce_op = ReduceOp::kSum;
  const std::byte* input = nullptr;
  std::byte* output = nullptr;
  // For a call that a program starts: whether the program computes nothing in
  // the meantime.
  bool alone = false;
  // For operations that move rows: the rows that this rank takes.
  std::shared_ptr<cpu::TakenRows> rows;
  RowOperands row_operands;  // the same on a GPU
  // On a GPU: the stream (a cudaStream_t) whose earlier work must finish before
  // the call runs, and whether the call runs aside (GpuCallFacts).
  void* stream = nullptr;
  bool aside = false;
  bool in_levels = false;  // a collective in levels, or a part of one
  // For a part of a collective in levels: buffers that replace input and
  // output.
  std::shared_ptr<const cpu::MemberBuffers> buffers;
  std::string name;  // for messages, as the user wrote it: "psum"
  std::string site;  // "train.py:33 (step)", or empty
  // Runs once, and may keep its thread for as long as it likes.
  std::function<void(const Status&)> done;
  uint64_t submitted = 0;  // when, in Ticks()
};

// A call in levels that waits for other ranks of its process to start it.
struct LocalWait {
  std::vector<int32_t> ranks;  // of the process
  std::shared_ptr<const Call> call;
  std::shared_ptr<const std::atomic<bool>> over;  // true when it waits no more
};

struct Finished {
  std::unique_ptr<Call> call;
  Status status;
};

// Advice for ranks that disagree.
inline constexpr char kSamePrograms[] =
    "All ranks have to run the same programs, with the same shapes and in the "
    "same order";

// The call of one member, described for the user.
struct Version {
  int member;
  std::string call;
};

// Returns kMismatch: two members should make the same call, number `identity`,
// but they call different collectives.
Status Disagreement(const Group& group, Version first, Version second,
                    uint64_t identity);

// Returns the status of a call that had not finished at the end of the job.
Status WasShutDown();

pool::CallDescriptor Describe(const Call& call);

// Returns a hash of everything that all ranks must agree on in a call, and of
// `before`: the hash of the calls before it, or 0.
uint64_t HashDescriptor(const pool::CallDescriptor& descriptor,
                        uint64_t before);

// Sets what a ragged_all_to_all sends and takes, for the CPU engine. `table` is
// this rank's table of slices (cc/plan/slices.h).
void SetSlices(Call* call, std::span<const int64_t> table);

// Returns a text like "psum: all_reduce sum of 1024 float32 at train.py:33
// (step)".
std::string DescribeText(const Call& call);
std::string DescribeText(const pool::CallDescriptor& descriptor,
                         const std::string& name, const std::string& site = "");

}  // namespace jax_cxl::comm

#endif  // JAX_CXL_COMM_CALL_CALL_H_
