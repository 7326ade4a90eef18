// The functions of NCCL that make, describe and end communicators.

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstring>
#include <mutex>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "cc/nccl/bootstrap.h"
#include "cc/nccl/group.h"
#include "cc/nccl/interface/abi.h"
#include "cc/nccl/interface/results.h"
#include "cc/nccl/interface/settings.h"
#include "cc/nccl/interface/unique_id.h"
#include "cc/nccl_library/exported.h"
#include "cc/nccl_library/opening.h"

namespace jax_cxl::nccl {
namespace {

Result<PoolToken> NewToken() {
  CXL_ASSIGN_OR_RETURN(PoolToken token, RandomPoolToken());
  // If the machine has no memory in JAX_CXL_NCCL_POOL, NCCL would not help.
  if (!TheSettings().shared_memory)
    token.bootstrap = OwnBootstrap(TheSettings().interfaces);
  return token;
}

Status Init(void** communicator, int size, const NcclUniqueId& id, int rank,
            const Config& config) {
  CXL_RETURN_IF_ERROR(TheSettings().status);
  if (communicator == nullptr)
    return Error(
        Code::kInvalidArgument,
        "the address for the communicator is null; pass the address of "
        "an ncclComm_t");
  if (size < 1)
    return Error(Code::kInvalidArgument, "a communicator cannot have ", size,
                 " ranks; pass at least 1");
  if (rank < 0 || rank >= size)
    return Error(Code::kInvalidArgument, "there is no rank ", rank,
                 " in a communicator of ", size, " ranks; pass 0 to ",
                 size - 1);
  const std::optional<PoolToken> token = TokenOf(id);
  if (!token)
    return Error(Code::kInvalidArgument,
                 "the unique id comes from another NCCL: set LD_PRELOAD and "
                 "JAX_CXL_NCCL_HOSTS alike in all processes");
  CXL_ASSIGN_OR_RETURN(const int ordinal, CurrentOrdinal());
  Announce(rank);
  const Opening opening = {*token, rank, size, ordinal, config, communicator};
  return Group::OfThisThread().AddOpening([opening] { return Open(opening); });
}

NcclResult ReportOpened(const Status& status, const Config& config) {
  const NcclResult result = Report(status);
  return result == kSuccess && !config.blocking() ? kInProgress : result;
}

// Makes the communicator of this rank's color.
Status Split(Communicator* parent, int color, int key, void** communicator,
             const Config& config) {
  *communicator = nullptr;
  CXL_RETURN_IF_ERROR(parent->CheckReady("ncclCommSplit"));
  SplitChoice mine = {color, key, {}};
  CXL_ASSIGN_OR_RETURN(mine.token, NewToken());
  std::vector<SplitChoice> choices(parent->size());
  {
    std::lock_guard lock(parent->mutex());
    CXL_ASSIGN_OR_RETURN(
        const std::vector<std::byte> gathered,
        parent->job()->AllGather(std::as_bytes(std::span(&mine, 1))));
    std::memcpy(choices.data(), gathered.data(), gathered.size());
  }
  if (color == kSplitNoColor) return OkStatus();
  const SplitPart part = PartOf(choices, parent->rank());
  return Open({part.token, part.rank, part.size, parent->ordinal(), config,
               communicator});
}

Status Shrink(Communicator* parent, std::span<const int> excluded,
              void** communicator, const Config& config, int flags) {
  *communicator = nullptr;
  std::vector<int> survivors;
  int rank = -1;
  for (int each = 0; each < parent->size(); ++each) {
    if (std::ranges::find(excluded, each) != excluded.end()) continue;
    if (each == parent->rank()) rank = static_cast<int>(survivors.size());
    survivors.push_back(each);
  }
  if (rank < 0)
    return Error(Code::kInvalidArgument, "rank ", parent->rank(),
                 " is excluded from the communicator that it would make; only "
                 "the ranks that remain may call ncclCommShrink");
  if ((flags & kShrinkAbort) != 0) parent->Abort();
  return Open({parent->NextToken(survivors), rank,
               static_cast<int>(survivors.size()), parent->ordinal(), config,
               communicator});
}

void Delete(Communicator* communicator) {
  Group::OfThisThread().Forget(communicator);
  if (!communicator->in_progress() && !communicator->status().ok())
    communicator->Abort();
  delete communicator;
}

}  // namespace

JAX_CXL_NCCL_API(int, ncclGetVersion, (int* version)) {
  constexpr int kInterface = 22800;  // whose functions this library has
  if (version == nullptr) return kInvalidArgument;
  if (RealLibrary::Loaded().status().ok())
    return JAX_CXL_NCCL_FORWARD("ncclGetVersion", version);
  *version = kInterface;
  return kSuccess;
}

JAX_CXL_NCCL_API(int, ncclGetUniqueId, (NcclUniqueId * id)) {
  if (id == nullptr) return kInvalidArgument;
  if (TheSettings().forwards_all())
    return JAX_CXL_NCCL_FORWARD("ncclGetUniqueId", id);
  if (!TheSettings().status.ok()) return Report(TheSettings().status);
  const Result<PoolToken> token = NewToken();
  if (!token.ok()) return Report(token.status());
  *id = {};
  PutToken(*token, id);
  return kSuccess;
}

JAX_CXL_NCCL_API(int, ncclCommInitRank,
                 (void** communicator, int size, NcclUniqueId id, int rank)) {
  if (TheSettings().forwards_all()) {
    Announce(rank);
    return JAX_CXL_NCCL_FORWARD("ncclCommInitRank", communicator, size, id,
                                rank);
  }
  return Report(Init(communicator, size, id, rank, Config(nullptr)));
}

JAX_CXL_NCCL_API(int, ncclCommInitRankConfig,
                 (void** communicator, int size, NcclUniqueId id, int rank,
                  const NcclConfig* config)) {
  if (TheSettings().forwards_all()) {
    Announce(rank);
    return JAX_CXL_NCCL_FORWARD("ncclCommInitRankConfig", communicator, size,
                                id, rank, config);
  }
  const Config copy(config);
  return ReportOpened(Init(communicator, size, id, rank, copy), copy);
}

JAX_CXL_NCCL_API(int, ncclCommInitRankScalable,
                 (void** communicator, int size, int rank, int ids_count,
                  const NcclUniqueId* ids, const NcclConfig* config)) {
  if (TheSettings().forwards_all()) {
    Announce(rank);
    return JAX_CXL_NCCL_FORWARD("ncclCommInitRankScalable", communicator, size,
                                rank, ids_count, ids, config);
  }
  if (ids_count < 1 || ids == nullptr) return kInvalidArgument;
  const Config copy(config);
  return ReportOpened(Init(communicator, size, ids[0], rank, copy), copy);
}

JAX_CXL_NCCL_API(int, ncclCommInitAll,
                 (void** communicators, int count, const int* devices)) {
  // All ranks are in this process.
  if (TheSettings().hosts != Hosts::kAll) {
    Announce(/*rank=*/0);
    return JAX_CXL_NCCL_FORWARD("ncclCommInitAll", communicators, count,
                                devices);
  }
  const Result<int> before = CurrentOrdinal();
  if (!before.ok()) return Report(before.status());
  NcclUniqueId id;
  if (const int result = ncclGetUniqueId(&id); result != kSuccess)
    return result;
  Group& group = Group::OfThisThread();
  group.Start();
  Status status;
  for (int rank = 0; rank < count && status.ok(); ++rank) {
    cudaSetDevice(devices == nullptr ? rank : devices[rank]);
    status = Init(&communicators[rank], count, id, rank, Config(nullptr));
  }
  cudaSetDevice(*before);
  if (!status.ok()) group.Discard();
  const Status ended = status.ok() ? group.End() : status;
  return Report(ended);
}

JAX_CXL_NCCL_API(int, ncclCommSplit,
                 (void* parent, int color, int key, void** communicator,
                  const NcclConfig* config)) {
  Communicator* ours = Ours(parent);
  if (ours == nullptr)
    return JAX_CXL_NCCL_FORWARD("ncclCommSplit", parent, color, key,
                                communicator,
                                ConfigForReal(Config(config)).get());
  if (communicator == nullptr) return kInvalidArgument;
  const Config copy(config);
  return ReportOpened(Group::OfThisThread().AddOpening([=] {
    return Split(ours, color, key, communicator, copy);
  }),
                      copy);
}

JAX_CXL_NCCL_API(int, ncclCommShrink,
                 (void* parent, int* excluded, int count, void** communicator,
                  const NcclConfig* config, int flags)) {
  Communicator* ours = Ours(parent);
  if (ours == nullptr)
    return JAX_CXL_NCCL_FORWARD("ncclCommShrink", parent, excluded, count,
                                communicator,
                                ConfigForReal(Config(config)).get(), flags);
  if (communicator == nullptr || count < 1 || excluded == nullptr)
    return kInvalidArgument;
  const std::vector<int> ranks(excluded, excluded + count);
  const Config copy(config);
  return ReportOpened(Group::OfThisThread().AddOpening([=] {
    return Shrink(ours, ranks, communicator, copy, flags);
  }),
                      copy);
}

JAX_CXL_NCCL_FUNCTION(ncclCommFinalize, (void* communicator), (communicator),
                      return Report(ours->Finalize());)

JAX_CXL_NCCL_API(int, ncclCommDestroy, (void* communicator)) {
  void* const given = communicator;
  if (Communicator* ours = Ours(communicator)) {
    Delete(ours);
    return kSuccess;
  }
  if (given != communicator) delete static_cast<Communicator*>(given);
  return JAX_CXL_NCCL_FORWARD("ncclCommDestroy", communicator);
}

JAX_CXL_NCCL_API(int, ncclCommAbort, (void* communicator)) {
  void* const given = communicator;
  if (Communicator* ours = Ours(communicator)) {
    ours->Abort();
    Delete(ours);
    return kSuccess;
  }
  if (given != communicator) delete static_cast<Communicator*>(given);
  return JAX_CXL_NCCL_FORWARD("ncclCommAbort", communicator);
}

JAX_CXL_NCCL_FUNCTION(ncclCommGetAsyncError, (void* communicator, int* error),
                      (communicator, error), {
                        if (error == nullptr) return kInvalidArgument;
                        *error = ours->in_progress() ? kInProgress
                                                     : ResultOf(ours->status());
                        return kSuccess;
                      })

JAX_CXL_NCCL_API(const char*, ncclGetLastError, (void* communicator)) {
  thread_local std::string text;
  if (Communicator* ours = Ours(communicator)) {
    text = ours->status().ok() ? LastError() : ours->status().message();
    return text.c_str();
  }
  if (communicator == nullptr && LastError()[0] != '\0') return LastError();
  if (!RealLibrary::is_loaded()) return "";
  auto* function = reinterpret_cast<const char* (*)(void*)>(
      RealLibrary::Loaded().Find("ncclGetLastError"));
  return function == nullptr ? "" : function(communicator);
}

JAX_CXL_NCCL_API(const char*, ncclGetErrorString, (int result)) {
  return ErrorString(result);
}

JAX_CXL_NCCL_FUNCTION(ncclCommCount, (void* communicator, int* count),
                      (communicator, count), {
                        *count = ours->size();
                        return kSuccess;
                      })

JAX_CXL_NCCL_FUNCTION(ncclCommCuDevice, (void* communicator, int* device),
                      (communicator, device), {
                        *device = ours->ordinal();
                        return kSuccess;
                      })

JAX_CXL_NCCL_FUNCTION(ncclCommUserRank, (void* communicator, int* rank),
                      (communicator, rank), {
                        *rank = ours->rank();
                        return kSuccess;
                      })

// Kernels read and write any memory of their GPU. So nothing is registered.
JAX_CXL_NCCL_FUNCTION(ncclCommRegister,
                      (void* communicator, void* buffer, size_t bytes,
                       void** handle),
                      (communicator, buffer, bytes, handle), {
                        *handle = buffer;
                        return kSuccess;
                      })

JAX_CXL_NCCL_FUNCTION(ncclCommDeregister, (void* communicator, void* handle),
                      (communicator, handle), return kSuccess;)

}  // namespace jax_cxl::nccl
