#include "cc/nccl/cuda/inner_gpus.h"

#include <cuda_runtime_api.h>

#include "cc/base/cuda/cuda_status.h"
#include "cc/nccl/interface/abi.h"

namespace jax_cxl::nccl {
namespace {

constexpr int kFloat = 7;  // ncclFloat32

}  // namespace

Status CheckPeerAccess(int ordinal, std::span<const int> ordinals) {
  for (int other : ordinals) {
    if (other == ordinal) continue;
    int can = 0;
    CXL_RETURN_IF_ERROR(
        cuda::CudaStatus(cudaDeviceCanAccessPeer(&can, ordinal, other),
                         "cudaDeviceCanAccessPeer"));
    if (can == 0)
      return Error(Code::kUnimplemented, "its GPU ", ordinal,
                   " cannot access the memory of GPU ", other);
  }
  return OkStatus();
}

Status ConnectInner(const Levels& levels) {
  cudaStream_t stream = nullptr;
  CXL_RETURN_IF_ERROR(cuda::CudaStatus(
      cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking),
      "cudaStreamCreate"));
  const uint64_t part =
      levels.scratch_bytes / sizeof(float) / levels.places.per_host;
  std::byte* const all = levels.scratch;
  std::byte* const mine = all + levels.places.place * part * sizeof(float);
  const auto run = [&](const Operation& operation) -> Status {
    CXL_RETURN_IF_ERROR(levels.inner->Add(operation));
    return cuda::CudaStatus(cudaStreamSynchronize(stream),
                            "connecting the GPUs of a host");
  };
  Status status;
  for (const Operation& operation :
       {Operation{Verb::kReduceScatter, all, mine, part, kFloat, kSum, 0,
                  stream},
        Operation{Verb::kAllGather, mine, all, part, kFloat, 0, 0, stream},
        Operation{Verb::kReduce, all, all, part, kFloat, kSum, 0, stream},
        Operation{Verb::kBroadcast, all, all, part, kFloat, 0, 0, stream}})
    if (status.ok()) status = run(operation);
  cudaStreamDestroy(stream);
  return status;
}

}  // namespace jax_cxl::nccl
