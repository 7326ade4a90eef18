// The functions of NCCL that communicate, and groups of them.

#include <cstddef>

#include "cc/nccl/calls/operation.h"
#include "cc/nccl/group.h"
#include "cc/nccl/interface/abi.h"
#include "cc/nccl/interface/results.h"
#include "cc/nccl_library/exported.h"

namespace jax_cxl::nccl {
namespace {

// Whether this thread has a group of the real library open.
thread_local bool real_group = false;

NcclResult Add(Communicator* communicator, const Operation& operation) {
  return Report(Group::OfThisThread().Add(communicator, operation));
}

}  // namespace

void JoinRealGroup() {
  if (real_group || !Group::OfThisThread().open()) return;
  real_group = true;  // first, because the next line comes here again
  JAX_CXL_NCCL_FORWARD("ncclGroupStart");
}

JAX_CXL_NCCL_API(int, ncclGroupStart, ()) {
  Group::OfThisThread().Start();
  // Open a group of the real library here, because most calls of a trampoline
  // jump into that library without opening one.
  if (RealLibrary::is_loaded()) JoinRealGroup();
  return kSuccess;
}

JAX_CXL_NCCL_API(int, ncclGroupEnd, ()) {
  NcclResult forwarded = kSuccess;
  if (real_group && Group::OfThisThread().outermost()) {
    forwarded = JAX_CXL_NCCL_FORWARD("ncclGroupEnd");
    real_group = false;
  }
  const NcclResult result = Report(Group::OfThisThread().End());
  return result == kSuccess ? forwarded : result;
}

JAX_CXL_NCCL_API(int, ncclGroupSimulateEnd, (void* info)) {
  Group& group = Group::OfThisThread();
  const bool empty = group.Discard();
  if (!empty)
    return Report(Error(Code::kUnimplemented,
                        "ncclGroupSimulateEnd cannot estimate calls of "
                        "communicators that go through the pool: call "
                        "ncclGroupEnd and measure"));
  const NcclResult result = JAX_CXL_NCCL_FORWARD("ncclGroupSimulateEnd", info);
  if (!group.open()) real_group = false;
  return result;
}

JAX_CXL_NCCL_FUNCTION(ncclAllReduce,
                      (const void* input, void* output, size_t count, int type,
                       int reduction, void* communicator, void* stream),
                      (input, output, count, type, reduction, communicator,
                       stream),
                      return Add(ours, {Verb::kAllReduce, input, output, count,
                                        type, reduction, 0, stream});)

JAX_CXL_NCCL_FUNCTION(ncclBroadcast,
                      (const void* input, void* output, size_t count, int type,
                       int root, void* communicator, void* stream),
                      (input, output, count, type, root, communicator, stream),
                      return Add(ours, {Verb::kBroadcast, input, output, count,
                                        type, 0, root, stream});)

JAX_CXL_NCCL_FUNCTION(ncclBcast,
                      (void* buffer, size_t count, int type, int root,
                       void* communicator, void* stream),
                      (buffer, count, type, root, communicator, stream),
                      return Add(ours, {Verb::kBroadcast, buffer, buffer, count,
                                        type, 0, root, stream});)

JAX_CXL_NCCL_FUNCTION(ncclReduce,
                      (const void* input, void* output, size_t count, int type,
                       int reduction, int root, void* communicator,
                       void* stream),
                      (input, output, count, type, reduction, root,
                       communicator, stream),
                      return Add(ours, {Verb::kReduce, input, output, count,
                                        type, reduction, root, stream});)

JAX_CXL_NCCL_FUNCTION(ncclAllGather,
                      (const void* input, void* output, size_t count, int type,
                       void* communicator, void* stream),
                      (input, output, count, type, communicator, stream),
                      return Add(ours, {Verb::kAllGather, input, output, count,
                                        type, 0, 0, stream});)

JAX_CXL_NCCL_FUNCTION(ncclReduceScatter,
                      (const void* input, void* output, size_t count, int type,
                       int reduction, void* communicator, void* stream),
                      (input, output, count, type, reduction, communicator,
                       stream),
                      return Add(ours, {Verb::kReduceScatter, input, output,
                                        count, type, reduction, 0, stream});)

JAX_CXL_NCCL_FUNCTION(ncclAlltoAll,
                      (const void* input, void* output, size_t count, int type,
                       void* communicator, void* stream),
                      (input, output, count, type, communicator, stream),
                      return Add(ours, {Verb::kAllToAll, input, output, count,
                                        type, 0, 0, stream});)

JAX_CXL_NCCL_FUNCTION(ncclGather,
                      (const void* input, void* output, size_t count, int type,
                       int root, void* communicator, void* stream),
                      (input, output, count, type, root, communicator, stream),
                      return Add(ours, {Verb::kGather, input, output, count,
                                        type, 0, root, stream});)

JAX_CXL_NCCL_FUNCTION(ncclScatter,
                      (const void* input, void* output, size_t count, int type,
                       int root, void* communicator, void* stream),
                      (input, output, count, type, root, communicator, stream),
                      return Add(ours, {Verb::kScatter, input, output, count,
                                        type, 0, root, stream});)

JAX_CXL_NCCL_FUNCTION(ncclSend,
                      (const void* input, size_t count, int type, int peer,
                       void* communicator, void* stream),
                      (input, count, type, peer, communicator, stream),
                      return Add(ours, {Verb::kSend, input, nullptr, count,
                                        type, 0, peer, stream});)

JAX_CXL_NCCL_FUNCTION(ncclRecv,
                      (void* output, size_t count, int type, int peer,
                       void* communicator, void* stream),
                      (output, count, type, peer, communicator, stream),
                      return Add(ours, {Verb::kRecv, nullptr, output, count,
                                        type, 0, peer, stream});)

JAX_CXL_NCCL_FUNCTION(ncclRedOpCreatePreMulSum,
                      (int* reduction, void* scalar, int type, int residence,
                       void* communicator),
                      (reduction, scalar, type, residence, communicator), {
                        if (reduction == nullptr) return kInvalidArgument;
                        const Result<int> number =
                            ours->reductions().Add(scalar, type, residence);
                        // Set the number even after an error, because PyTorch
                        // ignores the error. A number left unset could mean the
                        // plain sum.
                        *reduction = number.ok() ? *number : kNoOp;
                        return Report(number.status());
                      })

JAX_CXL_NCCL_FUNCTION(ncclRedOpDestroy, (int reduction, void* communicator),
                      (reduction, communicator),
                      return Report(ours->reductions().Remove(reduction));)

}  // namespace jax_cxl::nccl
