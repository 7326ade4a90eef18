#include "cc/comm/connect/arena.h"

#include <algorithm>
#include <iterator>

#include "cc/pool/layout/geometry.h"

namespace jax_cxl::comm {

using pool::kInterferenceBytes;
using pool::RoundUp;

Arena::Arena(const pool::Pool& pool, int rank) {
  for (int extent = 0; extent < pool.num_extents(); ++extent) {
    const pool::Pool::Range range = pool.arena(extent, rank);
    free_.push_back({{range.offset, range.bytes}});
  }
}

Result<uint64_t> Arena::Allocate(int extent, uint64_t bytes) {
  std::lock_guard lock(mutex_);
  auto& free = free_[extent];
  const uint64_t rounded = RoundUp(bytes, kInterferenceBytes);
  const auto range = std::ranges::find_if(
      free, [&](const auto& range) { return range.second >= rounded; });
  if (range == free.end()) {
    uint64_t left = 0;
    for (const auto& [at, size] : free) left += size;
    return Error(Code::kResourceExhausted,
                 "the pool is too small: a rank needs ", rounded,
                 " more bytes in one piece on pool device ", extent,
                 " and has ", left,
                 " left. Make the pool larger (?size=... in the pool's URI), "
                 "or use fewer different groups of ranks at a time or smaller "
                 "slots (JAX_CXL_SLOT_BYTES)");
  }
  const auto [offset, size] = *range;
  free.erase(range);
  if (size > rounded) free[offset + rounded] = size - rounded;
  return offset;
}

void Arena::Free(int extent, uint64_t offset, uint64_t bytes) {
  std::lock_guard lock(mutex_);
  auto& free = free_[extent];
  auto freed = free.emplace(offset, RoundUp(bytes, kInterferenceBytes)).first;
  const auto next = std::next(freed);
  if (next != free.end() && freed->first + freed->second == next->first) {
    freed->second += next->second;
    free.erase(next);
  }
  if (freed == free.begin()) return;
  const auto before = std::prev(freed);
  if (before->first + before->second != freed->first) return;
  before->second += freed->second;
  free.erase(freed);
}

}  // namespace jax_cxl::comm
