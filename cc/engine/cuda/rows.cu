#include <algorithm>
#include <type_traits>

#include "cc/engine/cuda/block.cuh"
#include "cc/engine/cuda/executor.h"
#include "cc/engine/cuda/rows.h"
#include "cc/plan/slices.h"

namespace jax_cxl::cuda {
namespace {

constexpr int kThreads = 256;
constexpr uint32_t kMaxGrid = 256;
constexpr uint64_t kNoFault = ~uint64_t{0};
// Up to this many checks take less time than the launch of a kernel for them.
// So every block of the next kernel makes all of them itself.
constexpr uint64_t kFewChecks = 1024;
// Bytes of a row that a warp copies at a time.
constexpr uint64_t kPartBytes = uint64_t{8} << 10;

// Adds place `to` of the output to the list of a row's places (see DeviceRows).
__device__ __forceinline__ void AddPlace(int32_t* first, int32_t* next,
                                         uint64_t row, uint64_t to) {
  next[to] = atomicExch(&first[row], static_cast<int32_t>(to));
}

// Copies `bytes` bytes, or writes zeros if `from` is null. `threads` threads
// share the work, and this one is number `thread`.
__device__ void CopyBytes(std::byte* to, const std::byte* from, uint64_t bytes,
                          uint32_t thread, uint32_t threads) {
  const auto copy = [&](auto zero) {
    using Word = decltype(zero);
    const auto* source = reinterpret_cast<const Word*>(from);
    auto* target = reinterpret_cast<Word*>(to);
    constexpr int kUnroll = 4;
    const uint64_t words = bytes / sizeof(Word);
    for (uint64_t base = thread; base < words;
         base += uint64_t{threads} * kUnroll) {
      Word values[kUnroll];
#pragma unroll
      for (int k = 0; k < kUnroll; ++k) {
        const uint64_t i = base + uint64_t{threads} * k;
        values[k] = from != nullptr && i < words ? source[i] : zero;
      }
#pragma unroll
      for (int k = 0; k < kUnroll; ++k) {
        const uint64_t i = base + uint64_t{threads} * k;
        if (i < words) target[i] = values[k];
      }
    }
  };
  const uint64_t alignment = reinterpret_cast<uintptr_t>(to) |
                             reinterpret_cast<uintptr_t>(from) | bytes;
  if (alignment % 16 == 0)
    copy(make_uint4(0, 0, 0, 0));
  else if (alignment % 4 == 0)
    copy(uint32_t{0});
  else
    copy(uint8_t{0});
}

struct Indices {
  const int32_t* indices;
  uint64_t taken;
  uint64_t table_rows;
  uint64_t all_rows;
  uint64_t row_bytes;
  int64_t own;  // index of the first row of this rank's block
  const std::byte* input;
  std::byte* output;
  int32_t* first;
  int32_t* next;
};

// Finds the places of the rows that come from other ranks. Writes all other
// rows of the output: copies of this rank's own rows, and zeros for indices
// outside the table. Every warp takes a part of a row at a time.
__global__ void FindPlaces(const __grid_constant__ Indices at) {
  const uint32_t warps = gridDim.x * (blockDim.x / 32);
  const uint64_t parts = (at.row_bytes + kPartBytes - 1) / kPartBytes;
  for (uint64_t item = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
       item < at.taken * parts; item += warps) {
    const uint64_t to = item / parts, begin = item % parts * kPartBytes;
    const int64_t index = at.indices[to];
    const bool inside = index >= 0 && index < at.all_rows;
    const int64_t own = index - at.own;
    const bool mine = inside && own >= 0 && own < at.table_rows;
    if (inside && !mine) {
      if (LaneInWarp() == 0 && begin == 0)
        AddPlace(at.first, at.next, index, to);
      continue;
    }
    CopyBytes(at.output + to * at.row_bytes + begin,
              mine ? at.input + own * at.row_bytes + begin : nullptr,
              min(kPartBytes, at.row_bytes - begin), LaneInWarp(), 32);
  }
}

template <typename Entry>
struct Slices {
  plan::SliceTables<Entry> tables;
  uint32_t rank;
  uint64_t* fault;
  int32_t* first;
  int32_t* next;
  uint8_t* published;
  uint64_t row_bytes;
  const std::byte* input;
  std::byte* output;
  DeviceStatus* status;
};

// Runs check number `number`. All checks are numbered: first the checks of
// single slices, then the checks of pairs of slices that one rank receives.
template <typename Entry>
__device__ plan::SliceFault Check(const Slices<Entry>& slices,
                                  uint64_t number) {
  const uint64_t entries = slices.tables.entries();
  if (number < slices.tables.ranks * entries)
    return plan::CheckSlice(slices.tables, number / entries, number % entries);
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

// Makes the checks with numbers `begin`, `begin` + `step`, and so on. Returns
// the number of the first check that finds a fault.
template <typename Entry>
__device__ uint64_t FirstFault(const Slices<Entry>& slices, uint64_t begin,
                               uint64_t step) {
  const uint64_t end = NumChecks(slices);
  for (uint64_t number = begin; number < end; number += step)
    if (Check(slices, number).kind != plan::SliceFault::kNone) return number;
  return kNoFault;
}

__device__ void Note(uint64_t* first, uint64_t fault) {
  if (fault != kNoFault)
    atomicMin(reinterpret_cast<unsigned long long*>(first),
              static_cast<unsigned long long>(fault));
}

// Stores the number of the first fault. plan::CheckSlices finds the same fault.
template <typename Entry>
__global__ void CheckAll(const __grid_constant__ Slices<Entry> slices) {
  Note(slices.fault,
       FirstFault(slices, uint64_t{blockIdx.x} * blockDim.x + threadIdx.x,
                  uint64_t{gridDim.x} * blockDim.x));
}

// Returns the number of the first fault. Every block makes all checks, so this
// is only for few checks.
template <typename Entry>
__device__ uint64_t CheckInBlock(const Slices<Entry>& slices) {
  __shared__ uint64_t first;
  if (threadIdx.x == 0) first = kNoFault;
  __syncthreads();
  Note(&first, FirstFault(slices, threadIdx.x, blockDim.x));
  __syncthreads();
  return first;
}

template <typename Entry>
__device__ void Refuse(const Slices<Entry>& slices, uint64_t number) {
  if (blockIdx.x != 0 || blockIdx.y != 0 || threadIdx.x != 0) return;
  slices.status->slice_fault = Check(slices, number);
  Report(slices.status, DeviceFault::kSlices, static_cast<int>(slices.rank));
  Stop(slices.status);
}

// Finds the places of all rows that this rank receives from other ranks, marks
// the rows that it sends to others, and copies its own rows. All thread blocks
// with the same blockIdx.y share the work on a slice. The sets of blocks with
// different blockIdx.y take slices in turn.
template <typename Entry>
__global__ void FindSlices(const __grid_constant__ Slices<Entry> slices) {
  const uint64_t fault =
      NumChecks(slices) <= kFewChecks ? CheckInBlock(slices) : *slices.fault;
  if (fault != kNoFault) return Refuse(slices, fault);
  const plan::SliceTables<Entry>& tables = slices.tables;
  const uint64_t entries = tables.entries(), rank = slices.rank;
  const uint32_t thread = blockIdx.x * blockDim.x + threadIdx.x;
  const uint32_t threads = gridDim.x * blockDim.x;
  for (uint64_t item = blockIdx.y; item < 2 * entries; item += gridDim.y) {
    if (item < entries) {
      const uint64_t sender = item / tables.slices();
      const uint64_t k = rank * tables.slices() + item % tables.slices();
      const uint64_t rows = tables.SendSize(sender, k);
      const uint64_t from = tables.InputRow(sender, k);
      const uint64_t to = tables.OutputRow(sender, k);
      if (sender == rank) {
        CopyBytes(slices.output + to * slices.row_bytes,
                  slices.input + from * slices.row_bytes,
                  rows * slices.row_bytes, thread, threads);
        continue;
      }
      int32_t* first = slices.first + sender * tables.rows.table;
      for (uint64_t i = thread; i < rows; i += threads)
        AddPlace(first, slices.next, from + i, to + i);
      continue;
    }
    const uint64_t k = item - entries;
    if (k / tables.slices() == rank) continue;
    const uint64_t rows = tables.SendSize(rank, k);
    const uint64_t from = tables.InputRow(rank, k);
    for (uint64_t i = thread; i < rows; i += threads)
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
                         const RowScratch& scratch, const void* input,
                         void* output, DeviceStatus* status,
                         cudaStream_t stream) {
  Slices<Entry> slices;
  slices.tables = {reinterpret_cast<const Entry*>(scratch.slices),
                   static_cast<uint64_t>(request.num_ranks), request.rows};
  slices.rank = static_cast<uint32_t>(request.rank);
  slices.fault = scratch.fault;
  slices.first = scratch.first;
  slices.next = scratch.next;
  slices.published = scratch.published;
  slices.row_bytes = request.count * request.element_bytes / request.rows.table;
  slices.input = static_cast<const std::byte*>(input);
  slices.output = static_cast<std::byte*>(output);
  slices.status = status;
  if (NumChecks(slices) > kFewChecks)
    CheckAll<Entry>
        <<<Grid(NumChecks(slices) / kThreads + 1), kThreads, 0, stream>>>(
            slices);
  const int rows = Grid(2 * slices.tables.entries());
  const dim3 grid(std::max(1, 2 * static_cast<int>(kMaxGrid) / rows), rows);
  FindSlices<Entry><<<grid, kThreads, 0, stream>>>(slices);
  return cudaGetLastError();
}

}  // namespace

RowScratch::RowScratch(const plan::Request& request, void* memory) {
  const plan::Rows& rows = request.rows;
  const uint64_t ranks = request.num_ranks;
  // Every part starts at a multiple of the size of its entries.
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

// Sets all bits of the faults, the places and the published rows to 1. This
// means that rows have no places, no row is published, and there is no fault.
cudaError_t ClearRows(const plan::Request& request, void* scratch,
                      cudaStream_t stream) {
  const RowScratch parts(request, scratch);
  auto* begin = reinterpret_cast<std::byte*>(parts.fault);
  auto* end = reinterpret_cast<std::byte*>(parts.next);
  return cudaMemsetAsync(begin, 0xff, end - begin, stream);
}

cudaError_t PrepareIndices(const plan::Request& request, const int32_t* indices,
                           const uint8_t* published, void* scratch,
                           const void* input, void* output, DeviceRows* rows,
                           cudaStream_t stream) {
  const RowScratch parts(request, scratch);
  *rows = Describe(request, parts);
  rows->published = published;
  Indices at;
  at.indices = indices;
  at.taken = request.rows.taken;
  at.table_rows = request.rows.table;
  at.all_rows = request.rows.table * request.num_ranks;
  at.row_bytes = rows->row_bytes;
  at.own = static_cast<int64_t>(request.rank * request.rows.table);
  at.input = static_cast<const std::byte*>(input);
  at.output = static_cast<std::byte*>(output);
  at.first = parts.first;
  at.next = parts.next;
  constexpr int kWarps = kThreads / 32;
  const uint64_t items =
      at.taken * ((at.row_bytes + kPartBytes - 1) / kPartBytes);
  const int blocks = static_cast<int>(
      std::clamp<uint64_t>((items + kWarps - 1) / kWarps, 1, 4 * kMaxGrid));
  FindPlaces<<<blocks, kThreads, 0, stream>>>(at);
  return cudaGetLastError();
}

cudaError_t PrepareSlices(const plan::Request& request, uint32_t entry_bytes,
                          void* scratch, const void* input, void* output,
                          DeviceStatus* status, DeviceRows* rows,
                          cudaStream_t stream) {
  const RowScratch parts(request, scratch);
  *rows = Describe(request, parts);
  rows->published = parts.published;
  return entry_bytes == sizeof(int32_t)
             ? LaunchSlices<int32_t>(request, parts, input, output, status,
                                     stream)
             : LaunchSlices<int64_t>(request, parts, input, output, status,
                                     stream);
}

cudaError_t PreloadRows() {
  return LoadKernels(FindPlaces, CheckAll<int32_t>, CheckAll<int64_t>,
                     FindSlices<int32_t>, FindSlices<int64_t>);
}

}  // namespace jax_cxl::cuda
