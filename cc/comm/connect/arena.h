#ifndef JAX_CXL_COMM_CONNECT_ARENA_H_
#define JAX_CXL_COMM_CONNECT_ARENA_H_

#include <cstdint>
#include <mutex>
#include <vector>

#include "cc/base/status.h"
#include "cc/pool/pool.h"

namespace jax_cxl::comm {

// Allocates ranges of a rank's part of the pool. It frees nothing before the
// job ends: a group keeps its channel after its first use.
//
// Thread-safe: different threads open a rank's CPU and GPU channels.
class Arena {
 public:
  Arena(const pool::Pool& pool, int rank);

  // Returns the offset of `bytes` unused bytes in `extent`, aligned to
  // kInterferenceBytes. Fails with kResourceExhausted, which says how much is
  // needed and how much is left.
  Result<uint64_t> Allocate(int extent, uint64_t bytes);

 private:
  std::mutex mutex_;
  std::vector<pool::Pool::Range> ranges_;  // free rest of each extent
};

}  // namespace jax_cxl::comm

#endif  // JAX_CXL_COMM_CONNECT_ARENA_H_
