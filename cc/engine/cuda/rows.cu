#include <algorithm>
#include <cstddef>

#include "cc/engine/cuda/rows.h"

namespace jax_cxl::cuda {
namespace {

// Buckets of all members together, about: few enough to be added up by one
// block, and enough for buckets of a few rows.
constexpr uint32_t kBuckets = 4096;
constexpr int kThreads = 256;
constexpr uint32_t kMaxGrid = 128;

struct Sorting {
  const int32_t* indices;
  uint64_t taken;
  uint64_t table_rows;  // of a member
  uint64_t all_rows;
  uint32_t bucket_rows;
  uint32_t buckets;  // of a member
  uint32_t all_buckets;
  RowEntry* entries;
  uint32_t* starts;
  uint32_t* next;  // of each bucket: its length, then its next free entry
};

__device__ bool Find(const Sorting& sorting, uint64_t at, RowEntry* entry,
                     uint32_t* bucket) {
  const int32_t index = sorting.indices[at];
  if (index < 0 || index >= sorting.all_rows) return false;
  const auto member = static_cast<uint32_t>(index / sorting.table_rows);
  entry->from = static_cast<uint32_t>(index - member * sorting.table_rows);
  entry->to = static_cast<uint32_t>(at);
  *bucket = member * sorting.buckets + entry->from / sorting.bucket_rows;
  return true;
}

__global__ void CountRows(const __grid_constant__ Sorting sorting) {
  RowEntry entry;
  uint32_t bucket;
  for (uint64_t at = blockIdx.x * blockDim.x + threadIdx.x; at < sorting.taken;
       at += uint64_t{gridDim.x} * blockDim.x)
    if (Find(sorting, at, &entry, &bucket)) atomicAdd(&sorting.next[bucket], 1);
}

// One block: lengths become starts.
__global__ void AddUpRows(const __grid_constant__ Sorting sorting) {
  __shared__ uint32_t sums[1024];
  const uint32_t each = (sorting.all_buckets + blockDim.x - 1) / blockDim.x;
  const uint32_t first = min(threadIdx.x * each, sorting.all_buckets);
  const uint32_t last = min(first + each, sorting.all_buckets);
  uint32_t sum = 0;
  for (uint32_t i = first; i < last; ++i) sum += sorting.next[i];
  sums[threadIdx.x] = sum;
  for (uint32_t step = 1; step < blockDim.x; step *= 2) {
    __syncthreads();
    const uint32_t before = threadIdx.x >= step ? sums[threadIdx.x - step] : 0;
    __syncthreads();
    sums[threadIdx.x] += before;
  }
  uint32_t start = sums[threadIdx.x] - sum;
  for (uint32_t i = first; i < last; ++i) {
    const uint32_t length = sorting.next[i];
    sorting.starts[i] = sorting.next[i] = start;
    start += length;
  }
  if (threadIdx.x == blockDim.x - 1)
    sorting.starts[sorting.all_buckets] = sums[threadIdx.x];
}

__global__ void SortRows(const __grid_constant__ Sorting sorting) {
  RowEntry entry;
  uint32_t bucket;
  for (uint64_t at = blockIdx.x * blockDim.x + threadIdx.x; at < sorting.taken;
       at += uint64_t{gridDim.x} * blockDim.x)
    if (Find(sorting, at, &entry, &bucket))
      sorting.entries[atomicAdd(&sorting.next[bucket], 1)] = entry;
}

__global__ void Zero(const int32_t* indices, uint64_t taken, uint64_t all_rows,
                     std::byte* output, uint64_t row_bytes) {
  for (uint64_t row = blockIdx.x; row < taken; row += gridDim.x) {
    if (indices[row] >= 0 && indices[row] < all_rows) continue;
    std::byte* begin = output + row * row_bytes;
    if (row_bytes % 16 == 0 && reinterpret_cast<uintptr_t>(output) % 16 == 0) {
      for (uint64_t i = threadIdx.x; i < row_bytes / 16; i += blockDim.x)
        reinterpret_cast<uint4*>(begin)[i] = make_uint4(0, 0, 0, 0);
    } else {
      for (uint64_t i = threadIdx.x; i < row_bytes; i += blockDim.x)
        begin[i] = std::byte{0};
    }
  }
}

int Grid(uint64_t threads) {
  return static_cast<int>(
      std::clamp<uint64_t>((threads + kThreads - 1) / kThreads, 1, kMaxGrid));
}

}  // namespace

uint64_t RowScratchBytes(int num_ranks, uint64_t taken) {
  const uint64_t buckets = kBuckets + num_ranks;
  return taken * sizeof(RowEntry) + (2 * buckets + 1) * sizeof(uint32_t);
}

cudaError_t PrepareRows(const plan::Request& request, const int32_t* indices,
                        const uint8_t* published, void* scratch,
                        DeviceRows* rows, cudaStream_t stream) {
  const uint64_t table = request.rows.table, taken = request.rows.taken;
  const auto ranks = static_cast<uint32_t>(request.num_ranks);
  const uint32_t most = std::max(kBuckets / ranks, 1u);
  rows->row_bytes = request.count * request.element_bytes / table;
  rows->table_rows = table;
  rows->bucket_rows = static_cast<uint32_t>((table + most - 1) / most);
  rows->buckets = static_cast<uint32_t>((table + rows->bucket_rows - 1) /
                                        rows->bucket_rows);
  rows->published = published;
  rows->entries = static_cast<RowEntry*>(scratch);
  rows->starts = reinterpret_cast<uint32_t*>(rows->entries + taken);
  Sorting sorting;
  sorting.indices = indices;
  sorting.taken = taken;
  sorting.table_rows = table;
  sorting.all_rows = table * ranks;
  sorting.bucket_rows = rows->bucket_rows;
  sorting.buckets = rows->buckets;
  sorting.all_buckets = rows->buckets * ranks;
  sorting.entries = rows->entries;
  sorting.starts = rows->starts;
  sorting.next = rows->starts + sorting.all_buckets + 1;
  if (cudaError_t error = cudaMemsetAsync(
          sorting.next, 0, sorting.all_buckets * sizeof(uint32_t), stream);
      error != cudaSuccess)
    return error;
  CountRows<<<Grid(taken), kThreads, 0, stream>>>(sorting);
  AddUpRows<<<1, 1024, 0, stream>>>(sorting);
  SortRows<<<Grid(taken), kThreads, 0, stream>>>(sorting);
  return cudaGetLastError();
}

cudaError_t ZeroRows(const plan::Request& request, const int32_t* indices,
                     void* output, cudaStream_t stream) {
  const uint64_t row_bytes =
      request.count * request.element_bytes / request.rows.table;
  Zero<<<Grid(request.rows.taken * kThreads), kThreads, 0, stream>>>(
      indices, request.rows.taken, request.rows.table * request.num_ranks,
      static_cast<std::byte*>(output), row_bytes);
  return cudaGetLastError();
}

cudaError_t PreloadRows() {
  cudaFuncAttributes attributes;
  const void* const kernels[] = {reinterpret_cast<const void*>(CountRows),
                                 reinterpret_cast<const void*>(AddUpRows),
                                 reinterpret_cast<const void*>(SortRows),
                                 reinterpret_cast<const void*>(Zero)};
  for (const void* kernel : kernels)
    if (cudaError_t error = cudaFuncGetAttributes(&attributes, kernel);
        error != cudaSuccess)
      return error;
  return cudaSuccess;
}

}  // namespace jax_cxl::cuda
