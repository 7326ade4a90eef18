#ifndef JAX_CXL_POOL_MEMORY_CHECK_H_
#define JAX_CXL_POOL_MEMORY_CHECK_H_

#include <cstdint>

#include "cc/base/status.h"
#include "cc/pool/pool.h"

// The measurements that `python -m jax_cxl doctor --device` makes. They use the
// arena of rank 0 in a pool that no job uses.
namespace jax_cxl::pool {

struct MemorySpeed {
  uint64_t bytes = 0;  // moved by each bandwidth measurement
  // Medians, in nanoseconds.
  double load_ns = 0;   // load of 8 bytes that no cache holds
  double store_ns = 0;  // store of 8 bytes, write-back and fence
  // Bandwidths of one thread, in GB/s.
  double load_gbs = 0;                // from memory, not from a cache
  double store_gbs = 0;               // stores and write-backs, to memory
  double non_temporal_store_gbs = 0;  // 0: not available
  double write_back_gbs = 0;          // write-backs of cached lines
};

// Fails with kUnimplemented if this processor cannot flush cache lines.
Result<MemorySpeed> MeasureMemory(const Pool& pool);

// Returns the number of check words, which are 128 bytes apart. With these
// words, two hosts check what a store does without a write-back, and what a
// load does without an invalidation.
uint64_t CheckWords(const Pool& pool);
void StoreCheckWord(const Pool& pool, uint64_t index, uint64_t value,
                    bool write_back);
uint64_t LoadCheckWord(const Pool& pool, uint64_t index, bool drop);

// Sends a doorbell back and forth `rounds` times between two hosts. Both must
// call this function, one with `first` = true and the other with false. Returns
// the median duration of a round trip in nanoseconds. Fails with
// kDeadlineExceeded if the other host does not answer within `timeout_s`.
Result<double> PassDoorbell(const Pool& pool, bool first, int rounds,
                            double timeout_s);

}  // namespace jax_cxl::pool

#endif  // JAX_CXL_POOL_MEMORY_CHECK_H_
