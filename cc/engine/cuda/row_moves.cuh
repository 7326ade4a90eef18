#ifndef JAX_CXL_ENGINE_CUDA_ROW_MOVES_CUH_
#define JAX_CXL_ENGINE_CUDA_ROW_MOVES_CUH_

#include <cstddef>
#include <cstdint>

#include "cc/engine/cuda/block.cuh"
#include "cc/engine/cuda/device_memory.cuh"
#include "cc/engine/cuda/rows.h"
#include "cc/engine/cuda/stripes.cuh"
#include "cc/engine/cuda/vector_loop.cuh"

// How data warps execute the steps of operations that move rows. They go
// through the vectors of a step as in every call, several at a time. A put
// leaves out vectors of rows that nobody takes. A get loads a vector only if
// its row has a place in the output, and stores it in each of its places.
namespace jax_cxl::cuda {

// A vector of a rank's block: its row, and its place in the row. Requires rows
// of whole vectors.
struct RowVector {
  uint64_t row;
  uint64_t begin;  // bytes

  // `at` is a byte offset in the block.
  __device__ RowVector(const DeviceRows& rows, uint64_t at) {
    const uint64_t vector = at / 16;
    if (rows.row_shift >= 0) {
      row = vector >> rows.row_shift;
      begin = (vector & (rows.row_vectors - 1)) * 16;
    } else if (vector >> 32 == 0) {  // a division of 32 bits is much faster
      const auto narrow = static_cast<uint32_t>(vector);
      row = narrow / rows.row_vectors;
      begin = uint64_t{narrow % rows.row_vectors} * 16;
    } else {
      row = vector / rows.row_vectors;
      begin = vector % rows.row_vectors * 16;
    }
  }
};

// Stores bytes [skip, end) of `value` at `to`.
__device__ __noinline__ inline void StorePart(std::byte* to, uint4 value,
                                              uint32_t skip, uint32_t end) {
  const uint64_t low = uint64_t{value.y} << 32 | value.x;
  const uint64_t high = uint64_t{value.w} << 32 | value.z;
  const auto word = [&](uint32_t i) {
    return i < 8 ? low >> (8 * i) : high >> (8 * (i - 8));
  };
  if ((reinterpret_cast<uintptr_t>(to) | skip | end) % 4 == 0) {
    for (uint32_t i = skip; i < end; i += 4)
      *reinterpret_cast<uint32_t*>(to + i - skip) =
          static_cast<uint32_t>(word(i));
    return;
  }
  for (uint32_t i = skip; i < end; ++i)
    to[i - skip] = static_cast<std::byte>(word(i));
}

// Returns true if any of bytes [begin, end) of this rank's block belong to a
// published row.
__device__ __forceinline__ bool IsPublished(const DeviceRows& rows,
                                            uint64_t begin, uint64_t end) {
  if (rows.published == nullptr) return true;
  if (rows.row_vectors > 0)
    return rows.published[RowVector(rows, begin).row] == 1;
  for (uint64_t row = begin / rows.row_bytes; row * rows.row_bytes < end; ++row)
    if (rows.published[row] == 1) return true;
  return false;
}

struct MovingRowVector : MovingVector {
  int32_t used;  // -1: the vector does not move
  int32_t following;
};

// Moves those of this thread's vectors for which `use(offset)` does not return
// -1. `load` loads a vector, and `store` stores it. `follow` takes the result
// of `use`, and may load something that `store` needs, at the same time as the
// vectors are loaded. `store` also gets the results of `use` and `follow`.
// Returns the number of vectors that this thread has moved.
template <typename Use, typename Follow, typename Load, typename Store>
__device__ __forceinline__ uint32_t MoveSome(DataWarp& warp,
                                             const StripeVectors& vectors,
                                             uint64_t bytes, const Use& use,
                                             const Follow& follow,
                                             const Load& load,
                                             const Store& store) {
  uint32_t moved = 0;
  using Vector = MovingRowVector;
  ForEachVector<Vector>(
      warp, vectors, bytes,
      [&](Vector& v) {
        v.used = v.offset < bytes ? use(v.offset) : -1;
        moved += v.used >= 0;
      },
      [&](Vector& v) {
        if (v.used >= 0) v.value = load(v.offset, bytes - v.offset);
      },
      [&](Vector& v) { v.following = v.used >= 0 ? follow(v.used) : -1; },
      [&](Vector& v) {
        if (v.used >= 0) store(v.offset, v.value, v.used, v.following);
      });
  return moved;
}

// Adds the bytes of vectors that a warp has moved to `*bytes`, a sum over all
// calls. All threads of the warp call it, each with the number of its vectors.
__device__ __forceinline__ void AddMoved(uint64_t* bytes, uint32_t vectors) {
  for (int distance = 16; distance > 0; distance /= 2)
    vectors += __shfl_xor_sync(0xffffffff, vectors, distance);
  if (LaneInWarp() == 0 && vectors > 0)
    atomicAdd(reinterpret_cast<unsigned long long*>(bytes),
              uint64_t{vectors} * 16);
}

// Puts those vectors of bytes [at, at + bytes) of this rank's block that belong
// to published rows. Returns the number of vectors that this thread has put.
template <typename Load>
__device__ __forceinline__ uint32_t PutRows(const DeviceRows& rows,
                                            DataWarp& warp,
                                            const StripeVectors& vectors,
                                            uint64_t at, uint64_t bytes,
                                            const Load& load, std::byte* slot) {
  return MoveSome(
      warp, vectors, bytes,
      [&](uint64_t i) {
        const uint64_t end = bytes - i < 16 ? bytes : i + 16;
        return IsPublished(rows, at + i, at + end) ? 0 : -1;
      },
      [](int32_t) { return -1; }, load,
      [&](uint64_t i, uint4 v, int32_t, int32_t) { StoreSlot(slot + i, v); });
}

// Moves those vectors of bytes [at, at + bytes) of a member's block that belong
// to taken rows to the output. `load(offset, valid)` loads a vector. Returns
// the number of vectors that this thread has moved.
template <typename Load>
__device__ __forceinline__ uint32_t MoveTaken(const DeviceRows& rows,
                                              DataWarp& warp,
                                              const StripeVectors& vectors,
                                              int member, uint64_t at,
                                              uint64_t bytes, const Load& load,
                                              std::byte* output) {
  const int32_t* first = rows.first + member * rows.table_rows;
  if (rows.row_vectors > 0) {
    return MoveSome(
        warp, vectors, bytes,
        [&](uint64_t i) { return first[RowVector(rows, at + i).row]; },
        [&](int32_t place) { return rows.next[place]; }, load,
        [&](uint64_t i, uint4 v, int32_t place, int32_t other) {
          std::byte* to = output + RowVector(rows, at + i).begin;
          StoreLocal(to + place * rows.row_bytes, v, 16);
          for (; other >= 0; other = rows.next[other])
            StoreLocal(to + other * rows.row_bytes, v, 16);
        });
  }
  // Rows do not consist of whole vectors, so vector `i` may have parts of
  // several rows. Calls `visit` for each of these rows that has a place.
  const auto for_each = [&](uint64_t i, const auto& visit) {
    const uint64_t begin = at + i;
    const uint64_t end = at + (bytes - i < 16 ? bytes : i + 16);
    for (uint64_t row = begin / rows.row_bytes; row * rows.row_bytes < end;
         ++row) {
      if (first[row] < 0) continue;
      const uint64_t row_begin = row * rows.row_bytes;
      const uint64_t row_end = row_begin + rows.row_bytes;
      visit(first[row], row_begin, row_begin < begin ? begin : row_begin,
            row_end < end ? row_end : end);
    }
  };
  return MoveSome(
      warp, vectors, bytes,
      [&](uint64_t i) {
        int32_t used = -1;
        for_each(i, [&](int32_t, uint64_t, uint64_t, uint64_t) { used = 0; });
        return used;
      },
      [](int32_t) { return -1; }, load,
      [&](uint64_t i, uint4 v, int32_t, int32_t) {
        for_each(i, [&](int32_t place, uint64_t row_begin, uint64_t from,
                        uint64_t to) {
          for (; place >= 0; place = rows.next[place])
            StorePart(output + place * rows.row_bytes + (from - row_begin), v,
                      static_cast<uint32_t>(from - at - i),
                      static_cast<uint32_t>(to - at - i));
        });
      });
}

}  // namespace jax_cxl::cuda

#endif  // JAX_CXL_ENGINE_CUDA_ROW_MOVES_CUH_
