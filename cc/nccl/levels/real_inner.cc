#include "cc/nccl/levels/real_inner.h"

#include "cc/nccl/interface/real_library.h"
#include "cc/nccl/interface/results.h"

namespace jax_cxl::nccl {
namespace {

// The functions of the real NCCL. NewId and Open fail if `status` is an error,
// so the other functions need no check.
struct Functions {
  Status status;
  int (*get_unique_id)(NcclUniqueId*);
  int (*init_rank)(void**, int, NcclUniqueId, int);
  int (*destroy)(void*);
  int (*abort)(void*);
  int (*get_async_error)(void*, int*);
  int (*group_start)();
  int (*group_end)();
  int (*reduce_scatter)(const void*, void*, size_t, int, int, void*, void*);
  int (*reduce)(const void*, void*, size_t, int, int, int, void*, void*);
  int (*all_gather)(const void*, void*, size_t, int, void*, void*);
  int (*broadcast)(const void*, void*, size_t, int, int, void*, void*);

  template <typename Function>
  void Find(const char* name, Function* function) {
    const RealLibrary& library = RealLibrary::Loaded();
    *function = reinterpret_cast<Function>(library.Find(name));
    if (*function == nullptr && status.ok())
      status = library.status().ok()
                   ? Error(Code::kUnimplemented, "NCCL at ", library.path(),
                           " does not have ", name, ": install a newer NCCL")
                   : library.status();
  }

  Functions() {
    Find("ncclGetUniqueId", &get_unique_id);
    Find("ncclCommInitRank", &init_rank);
    Find("ncclCommDestroy", &destroy);
    Find("ncclCommAbort", &abort);
    Find("ncclCommGetAsyncError", &get_async_error);
    Find("ncclGroupStart", &group_start);
    Find("ncclGroupEnd", &group_end);
    Find("ncclReduceScatter", &reduce_scatter);
    Find("ncclReduce", &reduce);
    Find("ncclAllGather", &all_gather);
    Find("ncclBroadcast", &broadcast);
  }
};

const Functions& TheFunctions() {
  static const Functions& functions = *new Functions;
  return functions;
}

Status InnerStatus(int result, const char* function) {
  if (result == kSuccess) return OkStatus();
  const Code code = result == kRemoteError ? Code::kPeerLost : Code::kInternal;
  return Error(
      code, function,
      " of NCCL, between the GPUs of this host, failed: ", ErrorString(result),
      ". JAX_CXL_NCCL_LEVELS=never uses only the pool");
}

}  // namespace

Result<NcclUniqueId> RealInner::NewId() {
  CXL_RETURN_IF_ERROR(TheFunctions().status);
  NcclUniqueId id = {};
  CXL_RETURN_IF_ERROR(
      InnerStatus(TheFunctions().get_unique_id(&id), "ncclGetUniqueId"));
  return id;
}

Result<std::unique_ptr<Inner>> RealInner::Open(const NcclUniqueId& id, int size,
                                               int rank) {
  CXL_RETURN_IF_ERROR(TheFunctions().status);
  void* communicator = nullptr;
  CXL_RETURN_IF_ERROR(
      InnerStatus(TheFunctions().init_rank(&communicator, size, id, rank),
                  "ncclCommInitRank"));
  return std::unique_ptr<Inner>(new RealInner(communicator));
}

RealInner::~RealInner() {
  if (communicator_ != nullptr) TheFunctions().destroy(communicator_);
}

Status RealInner::StartGroup() {
  return InnerStatus(TheFunctions().group_start(), "ncclGroupStart");
}

Status RealInner::EndGroup() {
  return InnerStatus(TheFunctions().group_end(), "ncclGroupEnd");
}

Status RealInner::Add(const Operation& operation) {
  const Functions& real = TheFunctions();
  const Operation& o = operation;
  void* const communicator = communicator_;
  if (communicator == nullptr)
    return Error(Code::kPeerLost,
                 "the communicator has been aborted; make a new one");
  switch (operation.verb) {
    case Verb::kReduceScatter:
      return InnerStatus(
          real.reduce_scatter(o.input, o.output, o.count, o.type, o.reduction,
                              communicator, o.stream),
          "ncclReduceScatter");
    case Verb::kReduce:
      return InnerStatus(
          real.reduce(o.input, o.output, o.count, o.type, o.reduction, o.root,
                      communicator, o.stream),
          "ncclReduce");
    case Verb::kAllGather:
      return InnerStatus(real.all_gather(o.input, o.output, o.count, o.type,
                                         communicator, o.stream),
                         "ncclAllGather");
    case Verb::kBroadcast:
      return InnerStatus(real.broadcast(o.input, o.output, o.count, o.type,
                                        o.root, communicator, o.stream),
                         "ncclBroadcast");
    default:
      return Error(Code::kInternal, "NCCL cannot execute step ",
                   static_cast<int>(o.verb),
                   " of a collective in levels; please report this to jax_cxl. "
                   "JAX_CXL_NCCL_LEVELS=never uses only the pool");
  }
}

Status RealInner::Check() {
  if (communicator_ == nullptr) return OkStatus();
  int error = kSuccess;
  const int result = TheFunctions().get_async_error(communicator_, &error);
  CXL_RETURN_IF_ERROR(InnerStatus(result, "ncclCommGetAsyncError"));
  return error == kInProgress ? OkStatus() : InnerStatus(error, "a collective");
}

void RealInner::Abort() {
  void* const communicator = communicator_.exchange(nullptr);
  if (communicator != nullptr) TheFunctions().abort(communicator);
}

}  // namespace jax_cxl::nccl
