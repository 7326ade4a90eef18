#include "cc/comm/connect/arena.h"

namespace jax_cxl::comm {

Arena::Arena(const pool::Pool& pool, int rank) {
  for (int extent = 0; extent < pool.num_extents(); ++extent)
    ranges_.push_back(pool.arena(extent, rank));
}

Result<uint64_t> Arena::Allocate(int extent, uint64_t bytes) {
  std::lock_guard lock(mutex_);
  pool::Pool::Range& range = ranges_[extent];
  const uint64_t rounded = (bytes + pool::kInterferenceBytes - 1) /
                           pool::kInterferenceBytes * pool::kInterferenceBytes;
  if (rounded > range.bytes)
    return Error(
        Code::kResourceExhausted, "the pool is too small: a rank needs ",
        rounded, " more bytes on pool device ", extent, " and has ",
        range.bytes,
        " left. Make it larger (?size=... in the pool's URI), or use fewer "
        "different groups of ranks or smaller slots (JAX_CXL_SLOT_BYTES)");
  const uint64_t offset = range.offset;
  range.offset += rounded;
  range.bytes -= rounded;
  return offset;
}

}  // namespace jax_cxl::comm
