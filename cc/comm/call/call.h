#ifndef JAX_CXL_COMM_CALL_CALL_H_
#define JAX_CXL_COMM_CALL_CALL_H_

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
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

inline double Seconds(Clock::duration duration) {
  return std::chrono::duration<double>(duration).count();
}

// The ranks of one communicator, in the order of the communicator. A rank is
// the index of a device among all devices of the job.
struct Group {
  std::vector<int32_t> members;
  int self = 0;  // which member this rank is

  int rank() const { return members[self]; }
};

// Returns a hash of a list of members. It is the same on every host.
uint64_t HashGroup(const std::vector<int32_t>& members);

// The operands, besides the input, of an operation that moves rows. On a GPU,
// they lie in the GPU's memory.
struct RowOperands {
  // take_rows: `indices` are the rows that this rank takes. `published` marks
  // the rows of this rank that others may take (null: all of them).
  const int32_t* indices = nullptr;
  const uint8_t* published = nullptr;
  // ragged_all_to_all: this rank's table of slices (cc/plan/slices.h), whose
  // integers have 4 or 8 bytes.
  const void* slices = nullptr;
  uint32_t slice_entry_bytes = 0;
  void* scratch = nullptr;  // GPUs only: cuda::RowScratchBytes
};

// A collective call that one rank has started.
struct Call {
  // All ranks use the same identity for one call (see cc/ffi/call/call_site.h).
  // Two calls of a group may have the same identity only if one of them has
  // ended on every rank before any rank starts the other one.
  uint64_t identity = 0;
  uint64_t number = 0;  // counts the rank's calls from 1; set by its Recorder
  plan::Request request;
  DType dtype = DType::kUint8;
  ReduceOp reduce_op = ReduceOp::kSum;
  const std::byte* input = nullptr;
  std::byte* output = nullptr;
  // For operations that move rows: their operands and, for the CPU engine, the
  // rows that this rank takes.
  RowOperands row_operands;
  std::shared_ptr<cpu::TakenRows> rows;
  bool in_levels = false;  // a collective in levels, or a part of one
  // For a part of a collective in levels: buffers that are used instead of
  // `input` and `output`.
  std::shared_ptr<const cpu::MemberBuffers> buffers;
  std::string name;  // for messages, as the user wrote it: "psum"
  std::string site;  // "train.py:33 (step)", or empty
  // The program that executes the call, and which of its launches this is.
  // Equal on all ranks. 0 if the program is not known.
  uint64_t program_hash = 0;
  uint32_t launch_number = 0;
  // For messages: the name of the program, or null if it is not known. Which of
  // its launches in this process this is, and which execution of the call in
  // the launch, counted from 1.
  std::shared_ptr<const std::string> program;
  uint64_t launch = 0;
  uint64_t execution = 0;
  // Called once, with the result, when the call has ended. This function may
  // block its thread for any length of time.
  std::function<void(const Status&)> done;
  uint64_t submitted = 0;  // when, in Ticks()
};

// The factor by which a rank multiplies its input in a premultiplied sum. It is
// one element of the call's dtype.
struct Factor {
  uint64_t bits = 0;         // of the element, unless `at` is set
  const void* at = nullptr;  // where the device reads it whenever the call runs
};

// Sums over all collectives since the start.
struct Stats {
  uint64_t calls = 0;
  uint64_t bytes_published = 0;  // written to the pool
  uint64_t bytes_retrieved = 0;  // read from the pool
  double seconds = 0;            // while at least one call was under way

  Stats& operator+=(const Stats& other) {
    calls += other.calls;
    bytes_published += other.bytes_published;
    bytes_retrieved += other.bytes_retrieved;
    seconds += other.seconds;
    return *this;
  }
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

// Advice in the errors of ranks that call different collectives.
inline constexpr char kSamePrograms[] =
    "All ranks have to run the same programs, with the same shapes and in the "
    "same order";

// One member's version of a call on which members disagree. `call` is a text
// for the user.
struct Version {
  int member;
  std::string call;
};

// Returns a kMismatch error: two members call different collectives, although
// both calls have the same identity.
Status Disagreement(const Group& group, Version first, Version second);

// Returns the error status of a call that had not finished when the job ended.
Status WasShutDown();

// Returns the error status of a call that other ranks have left out, in a
// launch that has failed.
Status LeftOut(const Call& call);

// Returns true if a launch of a program executes the call.
inline bool IsOf(const Call& call, uint64_t program, uint32_t launch) {
  return call.program_hash == program && call.launch_number == launch;
}

pool::CallDescriptor Describe(const Call& call);

// Returns a hash of `before` and of everything in a call that all ranks must
// agree on. `before` is the hash of the calls before this one, or 0.
uint64_t HashDescriptor(const pool::CallDescriptor& descriptor,
                        uint64_t before);

// Sets which rows a call that moves rows publishes and takes, for the CPU
// engine, from `call->row_operands`, which are in the host's memory. For a
// take_rows, also fills the rows of the output whose index is out of range with
// zeros.
void SetRows(Call* call);

// Returns a text like "psum: all_reduce sum of 1024 float32 at train.py:33
// (step)".
std::string DescribeText(const Call& call);
std::string DescribeText(const pool::CallDescriptor& descriptor,
                         const std::string& name, const std::string& site = "");

}  // namespace jax_cxl::comm

#endif  // JAX_CXL_COMM_CALL_CALL_H_
