#include "cc/engine/checksum/xxh3_lanes.h"
#include "cc/engine/cuda/checksum/block_checksums.h"

namespace jax_cxl::cuda {
namespace {

using xxh3::Pair;

constexpr int kWarpsPerGroup = 4;
constexpr unsigned kAllLanes = ~0U;

struct Keys {
  xxh3::LaneKeys of_lane[xxh3::kLanes];
};

__device__ Pair PairAt(const ulonglong2* address) {
  const ulonglong2 words = __ldcs(address);
  return {words.x, words.y};
}

// Returns the sum over the lanes whose numbers differ in these bits only.
template <int kFirstBit, int kLastBit>
__device__ uint64_t SumOverLanes(uint64_t value) {
#pragma unroll
  for (int bit = kFirstBit; bit <= kLastBit; bit *= 2)
    value +=
        __shfl_xor_sync(kAllLanes, static_cast<unsigned long long>(value), bit);
  return value;
}

// A warp computes the checksum of a block.
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
  Pair lower = PairAt(data);
  Pair upper = PairAt(data + kStep / 2);
  for (uint64_t step = 1; step <= steps; ++step) {
    const bool last = step == steps;
    data += kStep;
    // The next words are on their way while this step computes.
    const Pair next_lower = last ? Pair{} : PairAt(data);
    const Pair next_upper = last ? Pair{} : PairAt(data + kStep / 2);
    Pair sum;
    Mix(lower, own.lower, sum);
    Mix(upper, last ? own.upper_last : own.upper, sum);
    // All lanes of a pair have the same accumulators.
    accumulators.first +=
        SumOverLanes<xxh3::kPairs, xxh3::kLanes / 2>(sum.first);
    accumulators.second +=
        SumOverLanes<xxh3::kPairs, xxh3::kLanes / 2>(sum.second);
    if (!last) Scramble(own.scramble, accumulators);
    lower = next_lower;
    upper = next_upper;
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
