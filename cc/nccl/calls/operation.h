#ifndef JAX_CXL_NCCL_CALLS_OPERATION_H_
#define JAX_CXL_NCCL_CALLS_OPERATION_H_

#include <cstddef>
#include <cstdint>
#include <optional>

#include "cc/base/status.h"
#include "cc/comm/call/call.h"
#include "cc/nccl/calls/reductions.h"

namespace jax_cxl::nccl {

enum class Verb : uint8_t {
  kAllReduce,
  kBroadcast,
  kReduce,
  kAllGather,
  kReduceScatter,
  kAllToAll,
  kGather,
  kScatter,
  kSend,
  kRecv,
};

// A CUDA stream; this layer only passes it on.
using Stream = void*;

// A call of one of NCCL's communicating functions, with its arguments as NCCL
// numbers them.
struct Operation {
  Verb verb = Verb::kAllReduce;
  const void* input = nullptr;
  void* output = nullptr;
  size_t count = 0;   // of elements, as NCCL counts them for this function
  int type = 0;       // ncclDataType_t
  int reduction = 0;  // ncclRedOp_t
  int root = 0;       // or the peer
  Stream stream = nullptr;
};

// A collective in the library's form. The divisor divides the results, unless
// it is 0.
struct Collective {
  comm::Call call;
  int reduction = 0;  // ncclRedOp_t
  uint32_t divisor = 0;
  std::optional<comm::Factor> factor;  // of a premultiplied sum
};

// Returns the collective for one of `size` ranks. `reductions` are those of the
// communicator. Fails with kInvalidArgument if NCCL has no such call, or if
// `reductions` do not contain its reduction.
Result<Collective> MakeCollective(const Operation& operation, int rank,
                                  int size, const Reductions& reductions);

// One direction of communication between two ranks.
struct Transfer {
  int source = 0;
  int destination = 0;
  const void* input = nullptr;  // at the source
  void* output = nullptr;       // at the destination
  uint64_t bytes = 0;
  Stream stream = nullptr;

  bool local() const { return source == destination; }  // of a rank to itself
};

// Returns the transfer of a kSend or kRecv. Fails as MakeCollective does.
Result<Transfer> MakeTransfer(const Operation& operation, int rank, int size);

// Returns the collective of the group {source, destination} that executes the
// transfer for `rank`.
comm::Call CallOf(const Transfer& transfer, int rank);

}  // namespace jax_cxl::nccl

#endif  // JAX_CXL_NCCL_CALLS_OPERATION_H_
