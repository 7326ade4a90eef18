#ifndef JAX_CXL_COMM_CONNECT_ARENA_H_
#define JAX_CXL_COMM_CONNECT_ARENA_H_

#include <cstdint>
#include <mutex>
#include <vector>

#include "cc/base/status.h"
#include "cc/pool/pool.h"

namespace jax_cxl::comm {

// Hands out a rank's part of the pool, one range after the other. Nothing is
// given back before the job ends: a group, once used, keeps its channel.
//
// Thread-safe: a rank's CPU and GPU channels are opened by different threads.
class Arena {
 public:
  Arena(const pool::Pool& pool, int rank);

  // Offset of `bytes` fresh bytes in `extent`, aligned to a line.
  // Errors: kResourceExhausted, with how much is needed and left.
  Result<uint64_t> Allocate(int extent, uint64_t bytes);

 private:
  std::mutex mutex_;
  std::vector<pool::Pool::Range> ranges_;  // what is left of each extent
};

}  // namespace jax_cxl::comm

#endif  // JAX_CXL_COMM_CONNECT_ARENA_H_
