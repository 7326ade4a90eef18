#include <algorithm>
#include <type_traits>

#include "cc/engine/cuda/block.cuh"
#include "cc/engine/cuda/rows.h"
#include "cc/plan/slices.h"

namespace jax_cxl::cuda {
namespace {

constexpr int kThreads = 256;
constexpr uint32_t kMaxGrid = 256;
constexpr uint64_t kNoFault = ~uint64_t{0};

// Adds place `to` of the output to the places of a row.
__device__ __forceinline__ void AddPlace(int32_t* first, int32_t* next,
                                         uint64_t row, uint64_t to) {
  next[to] = atomicExch(&first[row], static_cast<int32_t>(to));
}

struct Indices {
  const int32_t* indices;
  uint64_t taken;
  uint64_t all_rows;
  uint64_t row_bytes;
  std::byte* output;
  int32_t* first;
  int32_t* next;
};

// A block takes several indices at a time: first it finds their places, then it
// fills rows with zeros.
__global__ void FindPlaces(const __grid_constant__ Indices at) {
  for (uint64_t begin = uint64_t{blockIdx.x} * blockDim.x; begin < at.taken;
       begin += uint64_t{gridDim.x} * blockDim.x) {
    const uint64_t to = begin + threadIdx.x;
    const int32_t index = to < at.taken ? at.indices[to] : -1;
    const bool inside = index >= 0 && index < at.all_rows;
    if (inside) AddPlace(at.first, at.next, index, to);
    if (!__syncthreads_or(to < at.taken && !inside)) continue;
    const uint64_t end = min(begin + blockDim.x, at.taken);
    const bool aligned = at.row_bytes % 16 == 0 &&
                         reinterpret_cast<uintptr_t>(at.output) % 16 == 0;
    // A warp for each row.
    for (uint64_t row = begin + threadIdx.x / 32; row < end;
         row += blockDim.x / 32) {
      if (at.indices[row] >= 0 && at.indices[row] < at.all_rows) continue;
      std::byte* zeros = at.output + row * at.row_bytes;
      if (aligned) {
        for (uint64_t i = LaneInWarp(); i < at.row_bytes / 16; i += 32)
          reinterpret_cast<uint4*>(zeros)[i] = make_uint4(0, 0, 0, 0);
      } else {
        for (uint64_t i = LaneInWarp(); i < at.row_bytes; i += 32)
          zeros[i] = std::byte{0};
      }
    }
  }
}

template <typename Entry>
struct Slices {
  plan::SliceTables<Entry> tables;
  plan::Rows sizes;
  uint32_t rank;
  uint64_t* fault;
  int32_t* first;
  int32_t* next;
  uint8_t* published;
  DeviceStatus* status;
};

// Check `number` of all checks: first those of each slice, then those of pairs
// that one rank receives.
template <typename Entry>
__device__ plan::SliceFault Check(const Slices<Entry>& slices,
                                  uint64_t number) {
  const uint64_t entries = slices.tables.entries();
  if (number < slices.tables.ranks * entries)
    return plan::CheckSlice(slices.tables, slices.sizes, number / entries,
                            number % entries);
  const uint64_t pair = number - slices.tables.ranks * entries;
  const uint64_t a = pair / entries % entries, b = pair % entries;
  if (a >= b) return {};
  return plan::CheckPair(slices.tables, pair / entries / entries, a, b);
}

template <typename Entry>
__host__ __device__ uint64_t NumChecks(const Slices<Entry>& slices) {
  const uint64_t entries = slices.tables.entries();
  return slices.tables.ranks * entries * (1 + entries);
}

// Finds the first fault, as plan::CheckSlices does.
template <typename Entry>
__global__ void CheckAll(const __grid_constant__ Slices<Entry> slices) {
  const uint64_t end = NumChecks(slices);
  for (uint64_t number = uint64_t{blockIdx.x} * blockDim.x + threadIdx.x;
       number < end; number += uint64_t{gridDim.x} * blockDim.x) {
    if (Check(slices, number).kind == plan::SliceFault::kNone) continue;
    atomicMin(reinterpret_cast<unsigned long long*>(slices.fault),
              static_cast<unsigned long long>(number));
    return;  // a later check of this thread has a larger number
  }
}

template <typename Entry>
__device__ void Refuse(const Slices<Entry>& slices, uint64_t number) {
  if (blockIdx.x != 0 || threadIdx.x != 0) return;
  slices.status->slice_fault = Check(slices, number);
  Report(slices.status, DeviceFault::kSlices, static_cast<int>(slices.rank));
  Stop(slices.status);
}

// Finds the places of all rows that this rank receives, and marks those that it
// sends to others. Blocks take slices in turn.
template <typename Entry>
__global__ void FindSlices(const __grid_constant__ Slices<Entry> slices) {
  if (const uint64_t fault = *slices.fault; fault != kNoFault)
    return Refuse(slices, fault);
  const plan::SliceTables<Entry>& tables = slices.tables;
  const uint64_t entries = tables.entries();
  for (uint64_t item = blockIdx.x; item < 2 * entries; item += gridDim.x) {
    if (item < entries) {
      const uint64_t sender = item / tables.slices;
      const uint64_t k = slices.rank * tables.slices + item % tables.slices;
      const uint64_t rows = tables.SendSize(sender, k);
      const uint64_t from =
          sender * slices.sizes.table + tables.InputOffset(sender, k);
      const uint64_t to = tables.OutputOffset(sender, k);
      for (uint64_t i = threadIdx.x; i < rows; i += blockDim.x)
        AddPlace(slices.first, slices.next, from + i, to + i);
      continue;
    }
    const uint64_t k = item - entries;
    if (k / tables.slices == slices.rank) continue;
    const uint64_t rows = tables.SendSize(slices.rank, k);
    const uint64_t from = tables.InputOffset(slices.rank, k);
    for (uint64_t i = threadIdx.x; i < rows; i += blockDim.x)
      slices.published[from + i] = 1;
  }
}

int Grid(uint64_t blocks) {
  return static_cast<int>(std::clamp<uint64_t>(blocks, 1, kMaxGrid));
}

DeviceRows Describe(const plan::Request& request, const RowScratch& scratch) {
  DeviceRows rows;
  rows.row_bytes = request.count * request.element_bytes / request.rows.table;
  rows.table_rows = request.rows.table;
  rows.row_vectors =
      rows.row_bytes % 16 == 0 ? static_cast<uint32_t>(rows.row_bytes / 16) : 0;
  rows.first = scratch.first;
  rows.next = scratch.next;
  return rows;
}

template <typename Entry>
cudaError_t LaunchSlices(const plan::Request& request,
                         const RowScratch& scratch, DeviceStatus* status,
                         cudaStream_t stream) {
  Slices<Entry> slices;
  slices.tables = {reinterpret_cast<const Entry*>(scratch.slices),
                   static_cast<uint64_t>(request.num_ranks),
                   request.rows.slices};
  slices.sizes = request.rows;
  slices.rank = static_cast<uint32_t>(request.rank);
  slices.fault = scratch.fault;
  slices.first = scratch.first;
  slices.next = scratch.next;
  slices.published = scratch.published;
  slices.status = status;
  CheckAll<Entry>
      <<<Grid(NumChecks(slices) / kThreads + 1), kThreads, 0, stream>>>(slices);
  FindSlices<Entry>
      <<<Grid(2 * slices.tables.entries()), kThreads, 0, stream>>>(slices);
  return cudaGetLastError();
}

}  // namespace

RowScratch::RowScratch(const plan::Request& request, void* memory) {
  const plan::Rows& rows = request.rows;
  const uint64_t ranks = request.num_ranks;
  // Every part starts at a multiple of its entries.
  const auto take = [&](auto** part, uint64_t count) {
    using T = std::remove_reference_t<decltype(**part)>;
    *part = reinterpret_cast<T*>(static_cast<std::byte*>(memory) + bytes);
    bytes += count * sizeof(T);
  };
  take(&slices, ranks * plan::SliceEntries(request) * sizeof(int64_t));
  take(&fault, 1);
  take(&first, ranks * rows.table);
  take(&published, rows.slices > 0 ? rows.table : 0);
  bytes = (bytes + 3) / 4 * 4;
  take(&next, rows.taken);
}

// Rows without places, which are not published, and no fault: all bits are 1.
cudaError_t ClearRows(const plan::Request& request, void* scratch,
                      cudaStream_t stream) {
  const RowScratch parts(request, scratch);
  auto* begin = reinterpret_cast<std::byte*>(parts.fault);
  auto* end = reinterpret_cast<std::byte*>(parts.next);
  return cudaMemsetAsync(begin, 0xff, end - begin, stream);
}

cudaError_t PrepareIndices(const plan::Request& request, const int32_t* indices,
                           const uint8_t* published, void* scratch,
                           void* output, DeviceRows* rows,
                           cudaStream_t stream) {
  const RowScratch parts(request, scratch);
  *rows = Describe(request, parts);
  rows->published = published;
  Indices at;
  at.indices = indices;
  at.taken = request.rows.taken;
  at.all_rows = request.rows.table * request.num_ranks;
  at.row_bytes = rows->row_bytes;
  at.output = static_cast<std::byte*>(output);
  at.first = parts.first;
  at.next = parts.next;
  // Few indices a block, so that many blocks fill rows with zeros.
  constexpr int kFewThreads = 128;
  FindPlaces<<<Grid((at.taken + kFewThreads - 1) / kFewThreads), kFewThreads, 0,
               stream>>>(at);
  return cudaGetLastError();
}

cudaError_t PrepareSlices(const plan::Request& request, uint32_t entry_bytes,
                          void* scratch, DeviceStatus* status, DeviceRows* rows,
                          cudaStream_t stream) {
  const RowScratch parts(request, scratch);
  *rows = Describe(request, parts);
  rows->published = parts.published;
  return entry_bytes == sizeof(int32_t)
             ? LaunchSlices<int32_t>(request, parts, status, stream)
             : LaunchSlices<int64_t>(request, parts, status, stream);
}

cudaError_t PreloadRows() {
  cudaFuncAttributes attributes;
  const void* const kernels[] = {
      reinterpret_cast<const void*>(FindPlaces),
      reinterpret_cast<const void*>(CheckAll<int32_t>),
      reinterpret_cast<const void*>(CheckAll<int64_t>),
      reinterpret_cast<const void*>(FindSlices<int32_t>),
      reinterpret_cast<const void*>(FindSlices<int64_t>)};
  for (const void* kernel : kernels)
    if (cudaError_t error = cudaFuncGetAttributes(&attributes, kernel);
        error != cudaSuccess)
      return error;
  return cudaSuccess;
}

}  // namespace jax_cxl::cuda
