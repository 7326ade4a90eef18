#include <algorithm>
#include <cstdint>
#include <limits>

#include "cc/engine/cuda/device_memory.cuh"
#include "cc/store/cuda/kernels/take.h"

namespace jax_cxl::table {
namespace {

constexpr uint32_t kThreads = 256;
// Enough to keep large GPUs busy.
constexpr uint64_t kMostBlocks = 1024;
// How many loads a thread has under way at the same time, from several short
// rows or from one long row. One load alone would wait for the link, whose
// latency is microseconds.
constexpr int kLoadsAtOnce = 4;

// Loads from memory that never changes while the kernel runs. No data are read
// again soon, so the load keeps them out of the L1 cache.
__device__ __forceinline__ uint4 Load(const uint4* from) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(from));
  return v;
}
template <typename Vector>
__device__ __forceinline__ Vector Load(const Vector* from) {
  return __ldg(from);
}

// Loads from memory that other processors may be changing.
__device__ __forceinline__ uint4 LoadShared(const uint4* from) {
  return cuda::LoadSlot(reinterpret_cast<const std::byte*>(from));
}
template <typename Vector>
__device__ __forceinline__ Vector LoadShared(const Vector* from) {
  return *static_cast<const volatile Vector*>(from);
}

// A group of `lanes` threads of a warp, which move a row together.
struct Slice {
  uint32_t lane;
  uint32_t lanes;
  uint32_t mask;

  __device__ explicit Slice(uint32_t lanes)
      : lane(threadIdx.x % lanes), lanes(lanes) {
    const uint32_t own = threadIdx.x % 32 / lanes * lanes;
    mask = lanes == 32 ? 0xffffffffu : ((1u << lanes) - 1) << own;
  }
};

template <typename Vector>
__device__ __forceinline__ Vector FillOf(const DeviceTake& take) {
  return *reinterpret_cast<const Vector*>(take.fill.data());
}

__device__ __forceinline__ int64_t RowAt(const DeviceTake& take,
                                         const Slice& slice, uint64_t i) {
  const int64_t id = take.wide ? static_cast<const int64_t*>(take.ids)[i]
                               : static_cast<const int32_t*>(take.ids)[i];
  const int64_t row = RowOf(id, static_cast<int64_t>(take.rows), take.mode);
  if (row == kOutside && take.outside != nullptr && slice.lane == 0)
    atomicMin(take.outside, static_cast<unsigned long long>(i));
  return row;
}

// Notes in the log that id number `i` takes `row`, and counts the row. Returns
// the row's slot in the cache, or kOutside.
__device__ __forceinline__ int64_t LookUp(const CacheView& cache,
                                          const Slice& slice, uint64_t i,
                                          int64_t row, uint32_t* wanted,
                                          uint32_t* found) {
  const int64_t slot =
      row == kOutside ? kOutside : SlotOf(row, cache.buckets, cache.rows);
  if (slice.lane == 0) {
    cache.log[(cache.log_at + i) % cache.log_size] = row;
    *wanted += row != kOutside;
    *found += slot != kOutside;
  }
  return slot;
}

__device__ __forceinline__ void AddCounts(const CacheView& cache,
                                          uint32_t wanted, uint32_t found) {
  for (int distance = 16; distance > 0; distance /= 2) {
    wanted += __shfl_xor_sync(0xffffffffu, wanted, distance);
    found += __shfl_xor_sync(0xffffffffu, found, distance);
  }
  if (threadIdx.x % 32 != 0 || wanted == 0) return;
  atomicAdd(&cache.counts[0], wanted);
  if (found != 0) atomicAdd(&cache.counts[1], found);
}

// Takes rows of a table that never changes. A slice takes `kRows` rows at once.
// Each thread of the slice then has up to kLoadsAtOnce / kRows loads under way
// for each of these rows. A load moves one vector.
template <typename Vector, int kRows, bool kCached>
__global__ void __launch_bounds__(kThreads)
    TakeConstant(DeviceTake take, uint64_t vectors, uint32_t lanes) {
  constexpr int kColumns = kLoadsAtOnce / kRows;
  const Slice slice(lanes);
  const uint64_t slices = uint64_t{gridDim.x} * kThreads / lanes;
  const uint64_t first =
      (uint64_t{blockIdx.x} * kThreads + threadIdx.x) / lanes * kRows;
  const auto* data = reinterpret_cast<const Vector*>(take.data);
  auto* output = reinterpret_cast<Vector*>(take.output);
  uint32_t wanted = 0, found = 0;
  for (uint64_t base = first; base < take.count; base += slices * kRows) {
    int64_t rows[kRows];
    const Vector* from[kRows];
#pragma unroll
    for (int u = 0; u < kRows; ++u) {
      rows[u] = base + u < take.count ? RowAt(take, slice, base + u) : kOutside;
      from[u] = data + rows[u] * vectors;
      if constexpr (kCached) {
        if (base + u >= take.count) continue;
        const int64_t slot =
            LookUp(take.cache, slice, base + u, rows[u], &wanted, &found);
        if (slot != kOutside)
          from[u] =
              reinterpret_cast<const Vector*>(take.cache.data) + slot * vectors;
      }
    }
    for (uint64_t left = slice.lane; left < vectors;
         left += uint64_t{kColumns} * lanes) {
      Vector values[kRows][kColumns];
#pragma unroll
      for (int c = 0; c < kColumns; ++c)
#pragma unroll
        for (int u = 0; u < kRows; ++u) {
          const uint64_t v = left + c * lanes;
          values[u][c] = rows[u] == kOutside || v >= vectors
                             ? FillOf<Vector>(take)
                             : Load(from[u] + v);
        }
#pragma unroll
      for (int c = 0; c < kColumns; ++c)
#pragma unroll
        for (int u = 0; u < kRows; ++u) {
          const uint64_t v = left + c * lanes;
          if (base + u < take.count && v < vectors)
            output[(base + u) * vectors + v] = values[u][c];
        }
    }
  }
  if constexpr (kCached) AddCounts(take.cache, wanted, found);
}

// Copies a row in the state in which its owner left it after a step. If the
// owner begins the next step meanwhile, copies the row again. Sets `stalled`
// and gives up if this takes too long.
template <typename Vector>
__device__ void CopyWhole(const DeviceTake& take, const Slice& slice,
                          uint64_t row, uint64_t vectors, Vector* to) {
  const auto* from = reinterpret_cast<const Vector*>(take.data) + row * vectors;
  const PartWords* part = take.parts + row / take.rows_of_part;
  const uint64_t start = cuda::NowNs();
  for (;;) {
    const uint64_t finished = cuda::AcquireWord(&part->finished);
    const uint64_t begun = cuda::AcquireWord(&part->begun);
    const uint64_t step = __shfl_sync(slice.mask, begun, 0, slice.lanes);
    if (__all_sync(slice.mask, finished == step && begun == step)) {
      for (uint64_t v = slice.lane; v < vectors; v += slice.lanes)
        to[v] = LoadShared(from + v);
      __threadfence_system();
      if (__all_sync(slice.mask, cuda::AcquireWord(&part->begun) == step))
        return;
    }
    const bool late = cuda::NowNs() - start > take.timeout_ns;
    if (__any_sync(slice.mask, late)) {
      *static_cast<volatile uint32_t*>(take.stalled) = 1;
      return;
    }
  }
}

template <typename Vector>
__global__ void __launch_bounds__(kThreads)
    TakeTrained(DeviceTake take, uint64_t vectors, uint32_t lanes) {
  const Slice slice(lanes);
  const uint64_t slices = uint64_t{gridDim.x} * kThreads / lanes;
  auto* output = reinterpret_cast<Vector*>(take.output);
  for (uint64_t i = (uint64_t{blockIdx.x} * kThreads + threadIdx.x) / lanes;
       i < take.count; i += slices) {
    const int64_t row = RowAt(take, slice, i);
    Vector* to = output + i * vectors;
    if (row != kOutside) {
      CopyWhole(take, slice, row, vectors, to);
    } else {
      for (uint64_t v = slice.lane; v < vectors; v += lanes)
        to[v] = FillOf<Vector>(take);
    }
  }
}

template <typename Vector>
cudaError_t Launch(const DeviceTake& take, cudaStream_t stream) {
  const uint64_t vectors = take.row_bytes / sizeof(Vector);
  uint32_t lanes = 1;
  while (lanes < 32 && lanes < vectors) lanes *= 2;
  const auto blocks = [&](uint64_t rows_of_slice, uint64_t most) {
    const uint64_t slices = (take.count + rows_of_slice - 1) / rows_of_slice;
    if (take.most_blocks > 0) most = std::min<uint64_t>(most, take.most_blocks);
    return static_cast<uint32_t>(
        std::min((slices * lanes + kThreads - 1) / kThreads, most));
  };
  if (take.parts != nullptr) {
    TakeTrained<Vector>
        <<<blocks(1, kMostBlocks), kThreads, 0, stream>>>(take, vectors, lanes);
    return cudaGetLastError();
  }
  // The grid has many small blocks, and the hardware starts a block when
  // another one ends. Parts of a GPU reach the link at different rates, so a
  // few large blocks that share the rows evenly would end at different times.
  const bool is_long = vectors > lanes;
  const bool cached = take.cache.buckets > 0;
  const auto run = is_long
                       ? (cached ? TakeConstant<Vector, 1, true>
                                 : TakeConstant<Vector, 1, false>)
                       : (cached ? TakeConstant<Vector, kLoadsAtOnce, true>
                                 : TakeConstant<Vector, kLoadsAtOnce, false>);
  const uint32_t grid =
      blocks(is_long ? 1 : kLoadsAtOnce, std::numeric_limits<int32_t>::max());
  run<<<grid, kThreads, 0, stream>>>(take, vectors, lanes);
  return cudaGetLastError();
}

}  // namespace

cudaError_t LaunchTake(const DeviceTake& take, cudaStream_t stream) {
  if (take.count == 0) return cudaSuccess;
  // The address of the cache does not limit the width of the vectors, because
  // it is a multiple of 256.
  const uint64_t all = reinterpret_cast<uintptr_t>(take.data) | take.row_bytes |
                       reinterpret_cast<uintptr_t>(take.output);
  if (all % 16 == 0) return Launch<uint4>(take, stream);
  if (all % 8 == 0) return Launch<uint64_t>(take, stream);
  if (all % 4 == 0) return Launch<uint32_t>(take, stream);
  if (all % 2 == 0) return Launch<uint16_t>(take, stream);
  return Launch<uint8_t>(take, stream);
}

}  // namespace jax_cxl::table
