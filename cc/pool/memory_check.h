#ifndef JAX_CXL_POOL_MEMORY_CHECK_H_
#define JAX_CXL_POOL_MEMORY_CHECK_H_

#include <cstdint>

#include "cc/base/status.h"
#include "cc/pool/pool.h"

// What `python -m jax_cxl doctor --device` measures in the memory of a pool
// that nobody else uses: in the arena of rank 0.
namespace jax_cxl::pool {

struct MemorySpeed {
  uint64_t bytes = 0;  // that each bandwidth moved
  // Median nanoseconds.
  double load_ns = 0;   // of 8 bytes that are in no cache
  double store_ns = 0;  // of 8 bytes, written back, with the fence
  // GB/s of one thread, out of and into the memory, not a cache.
  double load_gbs = 0;
  double store_gbs = 0;               // stores, then write-backs
  double non_temporal_store_gbs = 0;  // 0: this processor has none
  double write_back_gbs = 0;  // write-backs of lines that are in a cache
};

// kUnimplemented if this processor cannot flush lines.
Result<MemorySpeed> MeasureMemory(const Pool& pool);

// Words that two hosts look at in turn, 128 bytes apart: what a store without a
// write-back, and a load without a drop, do between them.
uint64_t CheckWords(const Pool& pool);
void StoreCheckWord(const Pool& pool, uint64_t index, uint64_t value,
                    bool write_back);
uint64_t LoadCheckWord(const Pool& pool, uint64_t index, bool drop);

// Passes a doorbell to and fro `rounds` times, between the host that calls with
// `first` and the one that does not. Returns the median nanoseconds of a round
// trip. Error: kDeadlineExceeded after `timeout_s` without an answer.
Result<double> PassDoorbell(const Pool& pool, bool first, int rounds,
                            double timeout_s);

}  // namespace jax_cxl::pool

#endif  // JAX_CXL_POOL_MEMORY_CHECK_H_
