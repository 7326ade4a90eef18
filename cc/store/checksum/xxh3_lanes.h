#ifndef JAX_CXL_STORE_CHECKSUM_XXH3_LANES_H_
#define JAX_CXL_STORE_CHECKSUM_XXH3_LANES_H_

#include <array>
#include <cstdint>

#ifdef __CUDACC__
#define JAX_CXL_HOST_DEVICE __host__ __device__
#else
#define JAX_CXL_HOST_DEVICE
#endif

// XXH3 with 64 bits and seed 0 (https://xxhash.com), as the library xxhash
// computes it, for data of whole KiB. The work for each KiB is divided among 32
// lanes. Lane i takes the 16 bytes at 16 * i, and the 16 bytes at 512 + 16 * i.
//
// XXH3 has eight accumulators of 64 bits, here four pairs. Lane i adds to pair
// i % 4. For each KiB, a pair grows by the sum over its eight lanes.
namespace jax_cxl::xxh3 {

inline constexpr int kLanes = 32;
inline constexpr int kPairs = 4;
inline constexpr uint64_t kStepBytes = 1024;

// Two neighboring words of the data or of the secret, or two accumulators.
struct Pair {
  uint64_t first = 0;
  uint64_t second = 0;
};

// The part of the algorithm's secret that lane i needs, and the initial values
// of the accumulators of pair i % 4.
struct LaneKeys {
  Pair start;
  Pair lower;       // for the words at 16 * i
  Pair upper;       // for the words at 512 + 16 * i
  Pair upper_last;  // the same, in the last KiB
  Pair scramble;
  Pair fold;
};

std::array<LaneKeys, kLanes> AllLaneKeys();

inline constexpr uint64_t kPrime32 = 0x9E3779B1;
inline constexpr uint64_t kPrime64 = 0x9E3779B185EBCA87;

// Adds to a lane's `sum` what two words of the data contribute. `keys` are the
// words of the secret for them.
JAX_CXL_HOST_DEVICE inline void Mix(const Pair& words, const Pair& keys,
                                    Pair& sum) {
  const uint64_t first = words.first ^ keys.first;
  const uint64_t second = words.second ^ keys.second;
  sum.first += words.second + (first & 0xFFFFFFFF) * (first >> 32);
  sum.second += words.first + (second & 0xFFFFFFFF) * (second >> 32);
}

// XXH3 changes its accumulators like this after each KiB except the last one.
JAX_CXL_HOST_DEVICE inline void Scramble(const Pair& keys, Pair& pair) {
  pair.first = (pair.first ^ (pair.first >> 47) ^ keys.first) * kPrime32;
  pair.second = (pair.second ^ (pair.second >> 47) ^ keys.second) * kPrime32;
}

// Returns what a pair of accumulators adds to the result.
JAX_CXL_HOST_DEVICE inline uint64_t Fold(const Pair& keys, const Pair& pair) {
  const auto product = static_cast<unsigned __int128>(pair.first ^ keys.first) *
                       (pair.second ^ keys.second);
  return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
}

// Returns the checksum of data of `bytes` bytes. `sum` is the sum of Fold over
// all pairs.
JAX_CXL_HOST_DEVICE inline uint64_t Finish(uint64_t sum, uint64_t bytes) {
  uint64_t hash = sum + bytes * kPrime64;
  hash = (hash ^ (hash >> 37)) * 0x165667919E3779F9;
  return hash ^ (hash >> 32);
}

}  // namespace jax_cxl::xxh3

#undef JAX_CXL_HOST_DEVICE

#endif  // JAX_CXL_STORE_CHECKSUM_XXH3_LANES_H_
