#ifndef JAX_CXL_ENGINE_CUDA_ROW_MOVES_CUH_
#define JAX_CXL_ENGINE_CUDA_ROW_MOVES_CUH_

#include <cstddef>
#include <cstdint>

#include "cc/engine/cuda/block.cuh"
#include "cc/engine/cuda/device_memory.cuh"
#include "cc/engine/cuda/rows.h"
#include "cc/engine/cuda/stripes.cuh"

// How data warps execute the steps of a take_rows. A put leaves out rows that
// nobody takes. Gets and copies move only the rows that are taken. Each block
// moves its own stripes, as in every call.
namespace jax_cxl::cuda {

// Stores the bytes of `value` that lie in [skip, valid) to `to` + i - skip.
__device__ __noinline__ inline void StorePart(std::byte* to, uint4 value,
                                              uint32_t skip, uint32_t valid) {
  const uint64_t low = uint64_t{value.y} << 32 | value.x;
  const uint64_t high = uint64_t{value.w} << 32 | value.z;
  for (uint32_t i = skip; i < valid; ++i)
    to[i - skip] =
        static_cast<std::byte>(i < 8 ? low >> (8 * i) : high >> (8 * (i - 8)));
}

// Whether some row of bytes [begin, end) of this rank's block is published.
__device__ __forceinline__ bool IsPublished(const DeviceRows& rows,
                                            uint64_t begin, uint64_t end) {
  for (uint64_t row = begin / rows.row_bytes; row * rows.row_bytes < end; ++row)
    if (rows.published[row] != 0) return true;
  return false;
}

// One warp moves [x, x + bytes) of a slot or chunk to `to`: this block's
// stripes of it. `load(offset, valid)` loads a vector at a multiple of 16.
template <typename Load>
__device__ __forceinline__ void MoveRow(const DeviceCall& call, uint64_t x,
                                        uint64_t bytes, std::byte* to,
                                        const Load& load) {
  constexpr int kUnroll = 4;
  const uint64_t first = x & ~uint64_t{15}, skipped = x - first;
  const uint64_t total = bytes + skipped;
  const StripeVectors vectors(first, total, call.unit_bytes, blockIdx.x,
                              gridDim.x);
  for (uint32_t base = LaneInWarp(); base < vectors.size();
       base += 32 * kUnroll) {
    uint4 values[kUnroll];
    uint64_t offsets[kUnroll];
#pragma unroll
    for (int k = 0; k < kUnroll; ++k) {
      const uint32_t i = base + k * 32;
      offsets[k] = i < vectors.size() ? vectors.Offset(i) : total;
      if (offsets[k] < total)
        values[k] = load(first + offsets[k], total - offsets[k]);
    }
#pragma unroll
    for (int k = 0; k < kUnroll; ++k) {
      if (offsets[k] >= total) continue;
      if (offsets[k] >= skipped && total - offsets[k] >= 16) {
        StoreLocal(to + (offsets[k] - skipped), values[k], 16);
        continue;
      }
      const uint32_t skip = offsets[k] < skipped
                                ? static_cast<uint32_t>(skipped - offsets[k])
                                : 0;
      const uint64_t end = total - offsets[k];
      StorePart(to + (offsets[k] + skip - skipped), values[k], skip,
                end < 16 ? static_cast<uint32_t>(end) : 16);
    }
  }
}

// Moves the taken rows of bytes [at, at + bytes) of a member's block, which lie
// from `base` on in a slot or chunk. Warps take 32 entries at a time.
template <typename Load>
__device__ __forceinline__ void MoveTaken(const DeviceCall& call,
                                          const DeviceRows& rows,
                                          DataWarp& warp, int member,
                                          uint64_t at, uint64_t bytes,
                                          uint64_t base, const Load& load) {
  const uint64_t row_bytes = rows.row_bytes, end = at + bytes;
  const uint32_t* starts = rows.starts + member * rows.buckets;
  const auto bucket = [&](uint64_t byte) {
    return static_cast<uint32_t>(byte / row_bytes) / rows.bucket_rows;
  };
  const uint32_t first = starts[bucket(at)];
  const uint32_t last = starts[bucket(end - 1) + 1];
  const uint32_t lane = LaneInWarp();
  for (uint32_t entry = first + (warp.thread() - lane); entry < last;
       entry += warp.threads()) {
    uint64_t from = 0, to = 0, x = 0;
    uint32_t output_row = 0;
    bool mine = false;
    if (entry + lane < last) {
      const RowEntry taken = rows.entries[entry + lane];
      const uint64_t begin = taken.from * row_bytes;
      from = begin > at ? begin : at;
      to = begin + row_bytes < end ? begin + row_bytes : end;
      output_row = taken.to;
      if (from < to) {
        x = base + (from - at);
        const uint64_t aligned = x & ~uint64_t{15};
        mine = StripeVectors(aligned, x + (to - from) - aligned,
                             call.unit_bytes, blockIdx.x, gridDim.x)
                   .size() > 0;
        from -= begin;
        to -= begin;
      }
    }
    for (unsigned left = __ballot_sync(0xffffffff, mine); left != 0;
         left &= left - 1) {
      const int one = __ffs(left) - 1;
      const uint64_t row_from = __shfl_sync(0xffffffff, from, one);
      const uint64_t row_to = __shfl_sync(0xffffffff, to, one);
      const uint64_t place = __shfl_sync(0xffffffff, x, one);
      const uint64_t row = __shfl_sync(0xffffffff, output_row, one);
      MoveRow(call, place, row_to - row_from,
              call.output + row * row_bytes + row_from, load);
    }
  }
  warp.Rotate((last - first + 31) / 32 * 32);
}

}  // namespace jax_cxl::cuda

#endif  // JAX_CXL_ENGINE_CUDA_ROW_MOVES_CUH_
