#ifndef JAX_CXL_POOL_MEDIA_URI_H_
#define JAX_CXL_POOL_MEDIA_URI_H_

#include <string_view>

#include "cc/base/status.h"
#include "cc/pool/media/medium.h"

namespace jax_cxl::pool {

// What a pool URI says: JAX_CXL_POOL, JAX_CXL_NCCL_POOL, and
// jax_cxl.initialize. jax_cxl/_job/pool/pool_uri.py explains the options.
struct PoolUri {
  // A pool in /dev/shm may have no path: its job makes a name.
  PoolSpec spec;
  bool coherence_given = false;  // false: the default of the medium
  // With coherence=flush: writes of GPUs reach the memory without a write-back.
  bool gpu_writes_memory = false;
  bool keep = false;  // the pool of a failed job stays in /dev/shm
};

// Fails with kInvalidArgument if the URI is wrong. The message names the error
// and shows a correct URI.
Result<PoolUri> ParsePoolUri(std::string_view uri);

}  // namespace jax_cxl::pool

#endif  // JAX_CXL_POOL_MEDIA_URI_H_
