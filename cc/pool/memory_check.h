#ifndef JAX_CXL_POOL_MEMORY_CHECK_H_
#define JAX_CXL_POOL_MEMORY_CHECK_H_

#include <cstdint>
#include <map>
#include <string>

#include "cc/base/status.h"
#include "cc/pool/pool.h"

// The measurements that `python -m jax_cxl doctor --device` makes. They use the
// arena of rank 0 in a pool that no job uses.
namespace jax_cxl::pool {

// Returns, by name:
//   bytes                   moved by each measurement of a bandwidth
//   load_ns                 load of 8 bytes that no cache holds; a median
//   store_ns                store of 8 bytes, write-back and fence; a median
// and bandwidths of one thread, in GB/s:
//   load_gbs                from memory, not from a cache
//   store_gbs               stores and write-backs, to memory
//   non_temporal_store_gbs  0: not available
//   write_back_gbs          write-backs of cached lines
// Fails with kUnimplemented if this processor cannot flush cache lines.
Result<std::map<std::string, double>> MeasureMemory(const Pool& pool);

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
