#ifndef JAX_CXL_COMM_CONNECT_ARENA_H_
#define JAX_CXL_COMM_CONNECT_ARENA_H_

#include <cstdint>
#include <map>
#include <mutex>
#include <vector>

#include "cc/base/status.h"
#include "cc/pool/pool.h"

namespace jax_cxl::comm {

// Allocates ranges of a rank's part of the pool.
//
// Thread-safe: different threads open a rank's CPU and GPU channels.
class Arena {
 public:
  Arena(const pool::Pool& pool, int rank);

  // Returns the offset of `bytes` unused bytes on pool device `extent`, aligned
  // to kInterferenceBytes. Fails with kResourceExhausted. The error reports how
  // many bytes are needed and how many are left.
  Result<uint64_t> Allocate(int extent, uint64_t bytes);
  void Free(int extent, uint64_t offset, uint64_t bytes);

 private:
  std::mutex mutex_;
  // The offset and bytes of each free range, by extent.
  std::vector<std::map<uint64_t, uint64_t>> free_;
};

}  // namespace jax_cxl::comm

#endif  // JAX_CXL_COMM_CONNECT_ARENA_H_
