#ifndef JAX_CXL_POOL_LAYOUT_GEOMETRY_H_
#define JAX_CXL_POOL_LAYOUT_GEOMETRY_H_

#include <cstdint>
#include <string>
#include <vector>

#include "cc/base/status.h"

// Computes where everything lies in a pool. The functions are pure: except for
// FilePageBytes, their results depend only on their arguments.
namespace jax_cxl::pool {

struct ByteRange {
  uint64_t offset = 0;
  uint64_t bytes = 0;
};

inline constexpr uint64_t RoundDown(uint64_t value, uint64_t unit) {
  return value / unit * unit;
}
inline constexpr uint64_t RoundUp(uint64_t value, uint64_t unit) {
  return RoundDown(value + unit - 1, unit);
}

// Returns the page size of this machine, or 4096 if that is larger. Sizes and
// offsets of a pool's files are multiples of it.
uint64_t FilePageBytes();

// Returns the number of bytes at the start of `extent` that belong to no arena.
uint64_t ControlBytes(int extent, int world_size);

uint64_t RecorderOffset(int rank, int world_size);

// Returns the size of each path for a pool whose size the user does not give.
// Together, the paths have `rank_bytes` for each rank, and room for the control
// pages on every device. With the default of 31 MiB for each rank, two ranks
// fit into the 64 MiB of /dev/shm that a container has by default.
inline constexpr uint64_t kAutomaticRankBytes = uint64_t{31} << 20;
uint64_t AutomaticPathBytes(int world_size, int num_paths, int devices_per_path,
                            uint64_t rank_bytes = kAutomaticRankBytes);

// Cuts each path into `devices_per_path` equal extents of whole pages, and
// returns all extents. Their offsets are relative to the mapping, in which the
// paths follow one another.
std::vector<ByteRange> SplitExtents(const std::vector<uint64_t>& path_bytes,
                                    int devices_per_path);

// Returns the arena of `rank` in `extents[extent]`. It is empty if the extent
// is too small.
ByteRange ArenaOf(const std::vector<ByteRange>& extents, int extent, int rank,
                  int world_size);

// Fails with kResourceExhausted if an arena is smaller than it would be in a
// pool of MinimumPoolBytes. The message names the size that the extent needs.
Status CheckCapacity(const std::vector<ByteRange>& extents, int world_size);

// Returns a text like "1.5 GiB (1610612736 bytes)".
std::string FormatBytes(uint64_t bytes);

// Returns the size of the smallest pool for `world_size` ranks. All extents
// have equal sizes, and together they give each rank at least 1 MiB.
uint64_t MinimumPoolBytes(int world_size, int num_extents);

}  // namespace jax_cxl::pool

#endif  // JAX_CXL_POOL_LAYOUT_GEOMETRY_H_
