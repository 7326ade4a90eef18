#include "cc/store/checksum/xxh3_lanes.h"
#include "cc/store/cuda/kernels/block_checksums.h"

namespace jax_cxl::cuda {
namespace {

using xxh3::Pair;

constexpr int kWarpsPerGroup = 4;
// How many steps ahead a warp loads its words. Computing a step takes only a
// small part of the time of a load. Only one warp works on a block of data,
// because each step needs the results of the previous step.
constexpr int kAhead = 8;
constexpr unsigned kAllLanes = ~0U;

struct Keys {
  xxh3::LaneKeys of_lane[xxh3::kLanes];
};

__device__ Pair PairAt(const ulonglong2* address) {
  const ulonglong2 words = __ldcs(address);
  return {words.x, words.y};
}

// Returns the sum of `value` over the lanes whose numbers differ from this
// lane's number only in bits kFirstBit to kLastBit.
template <int kFirstBit, int kLastBit>
__device__ uint64_t SumOverLanes(uint64_t value) {
#pragma unroll
  for (int bit = kFirstBit; bit <= kLastBit; bit *= 2)
    value +=
        __shfl_xor_sync(kAllLanes, static_cast<unsigned long long>(value), bit);
  return value;
}

// Each warp computes the checksum of one block of data.
__global__ void Checksums(const __grid_constant__ Keys keys,
                          const uint64_t* blocks, uint64_t count,
                          uint64_t steps, uint64_t* checksums) {
  const uint64_t block = uint64_t{blockIdx.x} * kWarpsPerGroup + threadIdx.y;
  if (block >= count) return;
  const unsigned lane = threadIdx.x;
  const xxh3::LaneKeys own = keys.of_lane[lane];
  constexpr uint64_t kStep = xxh3::kStepBytes / sizeof(ulonglong2);
  const auto* data = reinterpret_cast<const ulonglong2*>(blocks[block]) + lane;
  Pair accumulators = own.start;
  Pair words[kAhead][2];
  const auto load = [&](int slot, uint64_t step) {
    if (step >= steps) return;
    words[slot][0] = PairAt(data + step * kStep);
    words[slot][1] = PairAt(data + step * kStep + kStep / 2);
  };
#pragma unroll
  for (int slot = 0; slot < kAhead; ++slot) load(slot, slot);
  for (uint64_t first = 0; first < steps; first += kAhead) {
#pragma unroll
    for (int slot = 0; slot < kAhead; ++slot) {
      const uint64_t step = first + slot;
      if (step >= steps) break;
      const bool last = step + 1 == steps;
      Pair sum;
      Mix(words[slot][0], own.lower, sum);
      Mix(words[slot][1], last ? own.upper_last : own.upper, sum);
      load(slot, step + kAhead);
      // All lanes of a pair have the same accumulators, and add the sum over
      // these lanes.
      accumulators.first +=
          SumOverLanes<xxh3::kPairs, xxh3::kLanes / 2>(sum.first);
      accumulators.second +=
          SumOverLanes<xxh3::kPairs, xxh3::kLanes / 2>(sum.second);
      if (!last) Scramble(own.scramble, accumulators);
    }
  }
  const uint64_t sum =
      SumOverLanes<1, xxh3::kPairs / 2>(Fold(own.fold, accumulators));
  if (lane == 0) checksums[block] = xxh3::Finish(sum, steps * xxh3::kStepBytes);
}

}  // namespace

cudaError_t LaunchBlockChecksums(const uint64_t* blocks, uint64_t count,
                                 uint64_t bytes, uint64_t* checksums,
                                 cudaStream_t stream) {
  static const Keys keys = [] {
    Keys made;
    const auto all = xxh3::AllLaneKeys();
    for (int lane = 0; lane < xxh3::kLanes; ++lane)
      made.of_lane[lane] = all[lane];
    return made;
  }();
  if (count == 0) return cudaSuccess;
  const auto groups =
      static_cast<unsigned>((count + kWarpsPerGroup - 1) / kWarpsPerGroup);
  Checksums<<<groups, dim3(xxh3::kLanes, kWarpsPerGroup), 0, stream>>>(
      keys, blocks, count, bytes / xxh3::kStepBytes, checksums);
  return cudaGetLastError();
}

}  // namespace jax_cxl::cuda
