#include "cc/pool/layout/geometry.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "cc/pool/layout/layout.h"
#include "cc/pool/layout/recorder_layout.h"

namespace jax_cxl::pool {
namespace {

constexpr uint64_t kMinimumRankBytes = uint64_t{1} << 20;

// Automatic sizes are multiples of the largest page size of known machines, so
// they suit all machines.
constexpr uint64_t kAutomaticUnit = 65536;

uint64_t MinimumArenaBytes(int num_extents) {
  return RoundUp((kMinimumRankBytes + num_extents - 1) / num_extents,
                 kPageBytes);
}

}  // namespace

uint64_t FilePageBytes() {
  return std::max<uint64_t>(kPageBytes, sysconf(_SC_PAGESIZE));
}

uint64_t ControlBytes(int extent, int world_size) {
  if (extent > 0) return kPageBytes;
  return RecorderOffset(world_size, world_size);
}

uint64_t RecorderOffset(int rank, int world_size) {
  return kPageBytes + static_cast<uint64_t>(world_size) * kRankPageBytes +
         static_cast<uint64_t>(rank) * kRecorderBytes;
}

uint64_t MinimumPoolBytes(int world_size, int num_extents) {
  // All extents have equal sizes. So each has the size of the first one, which
  // has the most control pages.
  return num_extents * (ControlBytes(0, world_size) +
                        world_size * MinimumArenaBytes(num_extents));
}

uint64_t AutomaticPathBytes(int world_size, int num_paths, int devices_per_path,
                            uint64_t rank_bytes) {
  // All extents have equal sizes. So each has room for as many control pages as
  // the first one, which has the most.
  const uint64_t total = world_size * rank_bytes + ControlBytes(0, world_size) *
                                                       num_paths *
                                                       devices_per_path;
  const uint64_t share = (total + num_paths - 1) / num_paths;
  return RoundUp(share, kAutomaticUnit * devices_per_path);
}

std::vector<ByteRange> SplitExtents(const std::vector<uint64_t>& path_bytes,
                                    int devices_per_path) {
  std::vector<ByteRange> extents;
  uint64_t start = 0;
  for (uint64_t bytes : path_bytes) {
    const uint64_t part = RoundDown(bytes / devices_per_path, kPageBytes);
    for (int i = 0; i < devices_per_path; ++i) {
      extents.push_back({start + i * part, part});
    }
    start += bytes;
  }
  return extents;
}

ByteRange ArenaOf(const std::vector<ByteRange>& extents, int extent, int rank,
                  int world_size) {
  const ByteRange& whole = extents[extent];
  const uint64_t control = ControlBytes(extent, world_size);
  if (whole.bytes <= control) return {whole.offset, 0};
  const uint64_t bytes =
      RoundDown((whole.bytes - control) / world_size, kPageBytes);
  return {whole.offset + control + rank * bytes, bytes};
}

Status CheckCapacity(const std::vector<ByteRange>& extents, int world_size) {
  const int num_extents = static_cast<int>(extents.size());
  for (int e = 0; e < num_extents; ++e) {
    if (ArenaOf(extents, e, 0, world_size).bytes >=
        MinimumArenaBytes(num_extents)) {
      continue;
    }
    return Error(
        Code::kResourceExhausted, "the pool is too small for ", world_size,
        " ranks: pool device ", e, " of ", num_extents, " has ",
        FormatBytes(extents[e].bytes), " and needs ",
        FormatBytes(MinimumPoolBytes(world_size, num_extents) / num_extents),
        "; pass a larger size= or use fewer devices");
  }
  return OkStatus();
}

std::string FormatBytes(uint64_t bytes) {
  constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  double value = static_cast<double>(bytes);
  int unit = 0;
  while (value >= 1024 && unit < 5) {
    value /= 1024;
    ++unit;
  }
  if (unit == 0) return std::to_string(bytes) + " bytes";
  char text[64];
  std::snprintf(text, sizeof(text), "%.4g %s (%llu bytes)", value, kUnits[unit],
                static_cast<unsigned long long>(bytes));
  return text;
}

}  // namespace jax_cxl::pool
