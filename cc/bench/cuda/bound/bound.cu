#include <algorithm>

#include "cc/bench/cuda/bound/bound.h"
#include "cc/engine/cuda/device_memory.cuh"

namespace jax_cxl::cuda {
namespace {

constexpr int kUnroll = 8;
constexpr int kMaxPeers = 8;

struct Arguments {
  uint64_t publish, retrieve;  // vectors of 16 bytes
  uint64_t ring, buffer;       // vectors
  std::byte* own;
  std::byte* peers[kMaxPeers];
  int num_peers;
  std::byte* source;
  std::byte* destination;
};

__global__ void __launch_bounds__(kMaxThreads, 1)
    CopyBothWays(const __grid_constant__ Arguments a,
                 uint32_t sending_threads) {
  const bool sends = threadIdx.x < sending_threads;
  const uint64_t threads =
      uint64_t{sends ? sending_threads : blockDim.x - sending_threads} *
      gridDim.x;
  const uint64_t first = sends ? blockIdx.x * sending_threads + threadIdx.x
                               : blockIdx.x * (blockDim.x - sending_threads) +
                                     threadIdx.x - sending_threads;
  const uint64_t total = sends ? a.publish : a.retrieve;
  for (uint64_t base = first; base < total; base += threads * kUnroll) {
    uint4 values[kUnroll];
#pragma unroll
    for (int k = 0; k < kUnroll; ++k) {
      const uint64_t i = base + k * threads;
      if (i >= total) continue;
      if (sends) {
        values[k] = LoadLocal(a.source + i % a.buffer * 16, 16);
      } else {
        // Read the whole ring of one peer, then the ring of the next peer.
        const std::byte* peer = a.peers[i / a.ring % a.num_peers];
        values[k] = LoadSlot(peer + i % a.ring * 16);
      }
    }
#pragma unroll
    for (int k = 0; k < kUnroll; ++k) {
      const uint64_t i = base + k * threads;
      if (i >= total) continue;
      if (sends)
        StoreSlot(a.own + i % a.ring * 16, values[k]);
      else
        StoreLocal(a.destination + i % a.buffer * 16, values[k], 16);
    }
  }
}

__global__ void __launch_bounds__(kMaxThreads, 1)
    Read(const uint4* from, uint64_t vectors, uint4* never) {
  uint4 all = {};
  const uint64_t threads = uint64_t{gridDim.x} * blockDim.x;
  for (uint64_t i = uint64_t{blockIdx.x} * blockDim.x + threadIdx.x;
       i < vectors; i += threads) {
    const uint4 v = from[i];
    all.x ^= v.x;
    all.y ^= v.y;
    all.z ^= v.z;
    all.w ^= v.w;
  }
  // The compiler does not know that `never` is null.
  if (never != nullptr) *never = all;
}

}  // namespace

cudaError_t EnqueueBoundByKernel(const BoundTask& task, const Shape& shape,
                                 cudaStream_t stream) {
  Arguments a = {};
  a.publish = task.publish_bytes / 16;
  a.retrieve = task.peers.empty() ? 0 : task.retrieve_bytes / 16;
  a.ring = task.ring_bytes / 16;
  a.buffer = task.buffer_bytes / 16;
  a.own = task.own;
  a.num_peers =
      static_cast<int>(std::min<size_t>(task.peers.size(), kMaxPeers));
  for (int i = 0; i < a.num_peers; ++i) a.peers[i] = task.peers[i];
  a.source = task.buffer;
  a.destination = task.buffer + task.buffer_bytes;
  CopyBothWays<<<shape.blocks, shape.sending_threads + shape.receiving_threads,
                 0, stream>>>(a, shape.sending_threads);
  return cudaGetLastError();
}

cudaError_t EnqueueBoundByCopyEngine(const BoundTask& task,
                                     uint64_t chunk_bytes,
                                     cudaStream_t publishing,
                                     cudaStream_t retrieving) {
  for (uint64_t at = 0; at < task.publish_bytes; at += chunk_bytes) {
    const uint64_t bytes = std::min(chunk_bytes, task.publish_bytes - at);
    const cudaError_t error = cudaMemcpyAsync(
        task.own + at % task.ring_bytes, task.buffer + at % task.buffer_bytes,
        bytes, cudaMemcpyDefault, publishing);
    if (error != cudaSuccess) return error;
  }
  for (uint64_t at = 0; !task.peers.empty() && at < task.retrieve_bytes;
       at += chunk_bytes) {
    const uint64_t bytes = std::min(chunk_bytes, task.retrieve_bytes - at);
    const cudaError_t error = cudaMemcpyAsync(
        task.buffer + task.buffer_bytes + at % task.buffer_bytes,
        task.peers[at / task.ring_bytes % task.peers.size()] +
            at % task.ring_bytes,
        bytes, cudaMemcpyDefault, retrieving);
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

cudaError_t EnqueueReading(const std::byte* from, uint64_t bytes,
                           cudaStream_t stream) {
  constexpr uint32_t kBlocks = 264, kThreads = 512;
  Read<<<kBlocks, kThreads, 0, stream>>>(reinterpret_cast<const uint4*>(from),
                                         bytes / sizeof(uint4), nullptr);
  return cudaGetLastError();
}

}  // namespace jax_cxl::cuda
