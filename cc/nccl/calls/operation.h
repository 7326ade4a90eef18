#ifndef JAX_CXL_NCCL_CALLS_OPERATION_H_
#define JAX_CXL_NCCL_CALLS_OPERATION_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "cc/base/dtype.h"
#include "cc/base/status.h"
#include "cc/comm/call/call.h"
#include "cc/nccl/calls/reductions.h"
#include "cc/nccl/interface/abi.h"

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

// Returns the name of NCCL's function.
std::string_view NameOf(Verb verb);

// A CUDA stream; this layer only passes it on.
using Stream = void*;

// Indexed by ncclDataType_t.
inline constexpr std::array<DType, kNumNcclTypes> kTypes = {
    DType::kInt8,     DType::kUint8,        DType::kInt32,
    DType::kUint32,   DType::kInt64,        DType::kUint64,
    DType::kFloat16,  DType::kFloat32,      DType::kFloat64,
    DType::kBfloat16, DType::kFloat8E4M3Fn, DType::kFloat8E5M2};

// Fails with kInvalidArgument if kTypes has no such type.
inline Status CheckType(std::string_view function, int type) {
  if (type >= 0 && type < kNumNcclTypes) return OkStatus();
  return Error(Code::kInvalidArgument, function, ": there is no data type ",
               type, "; ncclDataType_t has 0 to ", kNumNcclTypes - 1);
}

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

// The transfers of a rank in one group of calls. The transfers of a batch run
// side by side. Batches run one after another.
using Batches = std::vector<std::vector<Transfer>>;

// Divides the transfers of `rank` into batches of at most `most` transfers;
// `most` is at least 2. Both ranks of a transfer put it into the batch with the
// same number, and no batch has two transfers of one channel. So the batches of
// all ranks never wait for each other in a circle, whatever a rank sends and
// receives. The first batch also has the transfers from the rank to itself,
// beyond `most`. Fails with kInvalidArgument if sends and receives of the rank
// with itself do not match.
Result<Batches> MakeBatches(const std::vector<Transfer>& transfers, int rank,
                            int size, int most);

}  // namespace jax_cxl::nccl

#endif  // JAX_CXL_NCCL_CALLS_OPERATION_H_
