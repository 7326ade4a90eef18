#ifndef JAX_CXL_COMM_CALL_CALL_H_
#define JAX_CXL_COMM_CALL_CALL_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cc/base/dtype.h"
#include "cc/base/status.h"
#include "cc/plan/plan.h"
#include "cc/pool/layout/channel_layout.h"

namespace jax_cxl::comm {

using Clock = std::chrono::steady_clock;

// The ranks of one communicator, in its order. Ranks are indices into the
// world: the devices of the job.
struct Group {
  std::vector<int32_t> members;
  int self = 0;  // which member this rank is
};

// Equal for equal member lists, on every host.
uint64_t HashGroup(const std::vector<int32_t>& members);

// One collective that a rank has started.
struct Call {
  // Equal on all ranks for the same call, whatever order ranks start calls in,
  // and different for any two calls of a group, unless one has ended on every
  // rank before any rank starts the other.
  uint64_t identity = 0;
  uint64_t number = 0;  // which call of the rank, from 1; set by its Recorder
  plan::Request request;
  DType dtype = DType::kUint8;
  ReduceOp reduce_op = ReduceOp::kSum;
  const std::byte* input = nullptr;
  std::byte* output = nullptr;
  // ragged_all_to_all: this rank's table (plan::Ragged).
  std::vector<int64_t> table;
  std::string name;  // for messages, as the user wrote it: "psum"
  std::string site;  // where: "train.py:33 (step)", or empty
  // Runs once, on a thread that may be borrowed for as long as it likes.
  std::function<void(const Status&)> done;
  uint64_t submitted = 0;  // when, in Ticks()
};

struct Finished {
  std::unique_ptr<Call> call;
  Status status;
};

// What to do about ranks that disagree.
inline constexpr char kSamePrograms[] =
    "All ranks have to run the same programs, with the same shapes and in the "
    "same order";

pool::CallDescriptor Describe(const Call& call);

// What a ragged_all_to_all moves is known at run time only. Its members first
// gather each other's tables, by this call, into call->request.ragged.tables;
// from these all of them make the same plan, or find the same error.
plan::Request GatherTables(Call* call);

// "psum: all_reduce sum of 1024 float32 at train.py:33 (step)".
std::string DescribeText(const Call& call);
// "psum: all_reduce sum of 1024 float32".
std::string DescribeText(const pool::CallDescriptor& descriptor,
                         const std::string& name);

}  // namespace jax_cxl::comm

#endif  // JAX_CXL_COMM_CALL_CALL_H_
