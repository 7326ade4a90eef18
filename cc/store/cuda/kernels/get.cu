#include <algorithm>
#include <cstdint>

#include "cc/store/cuda/kernels/get.h"
#include "cc/store/ring/ring.h"

namespace jax_cxl::tier {
namespace {

constexpr uint32_t kThreads = 256;
// Enough to keep large GPUs busy.
constexpr uint64_t kMostBlocks = 1024;
constexpr uint64_t kBlockBytes = Layout::kBlockBytes;

// Returns the address of a byte of the ring. The positions of values are
// multiples of 16, so a vector of 16 bytes always lies in one block.
__device__ const std::byte* AddressOf(const DeviceGet& get, uint64_t position) {
  const uint64_t devices = get.devices;
  const uint64_t at = position % (get.rows * devices * kBlockBytes);
  const uint64_t block = at / kBlockBytes;
  return get.parts[block % devices] + block / devices * kBlockBytes +
         at % kBlockBytes;
}

__device__ uint64_t ProblemOf(const DeviceGet& get, const DeviceHandle& of) {
  if (of.ring != get.own.ring || of.device != get.own.device)
    return GetError::kOtherRing;
  const uint64_t since = get.own.position - of.position;
  return since > get.rows * get.devices * kBlockBytes ? since : 0;
}

__global__ void __launch_bounds__(kThreads) Get(DeviceGet get) {
  const DeviceHandle of = *get.handle;
  const uint64_t problem = ProblemOf(get, of);
  const bool staged =
      get.staged != nullptr && of.position == get.staged_position;
  const uint64_t first = uint64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (problem != 0 && first == 0) {
    *reinterpret_cast<volatile uint64_t*>(&get.error->since) = problem;
    __threadfence_system();
  }
  const auto from = [&](uint64_t at) {
    return staged ? get.staged + at : AddressOf(get, of.position + at);
  };
  const uint64_t vectors = get.bytes / sizeof(uint4);
  auto* output = reinterpret_cast<uint4*>(get.output);
  constexpr uint4 kOnes = {~0u, ~0u, ~0u, ~0u};
  for (uint64_t v = first; v < vectors; v += uint64_t{gridDim.x} * kThreads)
    output[v] = problem != 0
                    ? kOnes
                    : *reinterpret_cast<const uint4*>(from(v * sizeof(uint4)));
  const uint64_t rest = vectors * sizeof(uint4) + first;
  if (rest < get.bytes)
    get.output[rest] = problem != 0 ? std::byte{0xff} : *from(rest);
}

__global__ void WriteHandle(DeviceHandle handle, DeviceHandle* to) {
  *to = handle;
}

}  // namespace

cudaError_t LaunchGet(const DeviceGet& get, cudaStream_t stream) {
  if (get.bytes == 0) return cudaSuccess;
  const uint64_t vectors = get.bytes / sizeof(uint4);
  const uint64_t blocks =
      std::clamp<uint64_t>((vectors + kThreads - 1) / kThreads, 1, kMostBlocks);
  Get<<<static_cast<uint32_t>(blocks), kThreads, 0, stream>>>(get);
  return cudaGetLastError();
}

cudaError_t LaunchWriteHandle(const DeviceHandle& handle, DeviceHandle* to,
                              cudaStream_t stream) {
  WriteHandle<<<1, 1, 0, stream>>>(handle, to);
  return cudaGetLastError();
}

}  // namespace jax_cxl::tier
