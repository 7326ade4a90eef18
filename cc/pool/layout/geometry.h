#ifndef JAX_CXL_POOL_LAYOUT_GEOMETRY_H_
#define JAX_CXL_POOL_LAYOUT_GEOMETRY_H_

#include <cstdint>
#include <string>
#include <vector>

#include "cc/base/status.h"

// Computes where everything lies in a pool. The functions are pure, and depend
// only on sizes.
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

// The page size. On this machine, sizes and offsets of files are multiples of
// it.
uint64_t FilePageBytes();

// Bytes at the start of `extent` that belong to no arena.
uint64_t ControlBytes(int extent, int world_size);

// Where the recorder of `rank` starts.
uint64_t RecorderOffset(int rank, int world_size);

// The size of each path if the user gives none: `rank_bytes` for each rank, and
// room for the control pages on every device. Two ranks fit into the 64 MiB of
// /dev/shm that a container has.
inline constexpr uint64_t kAutomaticRankBytes = uint64_t{31} << 20;
uint64_t AutomaticPathBytes(int world_size, int num_paths, int devices_per_path,
                            uint64_t rank_bytes = kAutomaticRankBytes);

// Cuts each path into `devices_per_path` equal extents of whole pages. Offsets
// are relative to the mapping, in which the paths follow each other.
std::vector<ByteRange> SplitExtents(const std::vector<uint64_t>& path_bytes,
                                    int devices_per_path);

// Returns the part of `extents[extent]` that `rank` owns. It is empty if the
// extent is too small.
ByteRange ArenaOf(const std::vector<ByteRange>& extents, int extent, int rank,
                  int world_size);

// Fails with kResourceExhausted, and names the size to ask for, if some extent
// leaves a rank less than MinimumPoolBytes promises.
Status CheckCapacity(const std::vector<ByteRange>& extents, int world_size);

// Returns a text like "1.5 GiB (1610612736 bytes)".
std::string FormatBytes(uint64_t bytes);

// The size of the smallest pool that serves `world_size` ranks. All extents are
// equal, and together they give each rank at least 1 MiB.
uint64_t MinimumPoolBytes(int world_size, int num_extents);

}  // namespace jax_cxl::pool

#endif  // JAX_CXL_POOL_LAYOUT_GEOMETRY_H_
