#ifndef JAX_CXL_POOL_MEDIA_POOL_SPEC_H_
#define JAX_CXL_POOL_MEDIA_POOL_SPEC_H_

#include <cstdint>
#include <string>
#include <vector>

#include "cc/base/status.h"
#include "cc/pool/coherence/coherence.h"
#include "cc/pool/coherence/interposer.h"
#include "cc/pool/media/medium.h"

namespace jax_cxl::pool {

// The contents of a pool URI (jax_cxl/_job/pool/pool_uri.py parses it).
struct PoolSpec {
  const Medium* medium = &Medium::Shm();
  // Shm: one name, without a slash. Other media: one path per pool device.
  std::vector<std::string> paths;
  // Bytes in each path. 0 means: the rest of a device, the rest of an existing
  // file, otherwise AutomaticPathBytes.
  uint64_t bytes = 0;
  int devices_per_path = 1;  // files: equal extents in each path
  uint64_t offset = 0;       // where the pool starts in each path, in bytes
  CoherenceMode coherence = CoherenceMode::kCoherent;
  // If jobs share the medium, the memory of another job, which may run on
  // another host, is taken only after the job's heartbeats have stopped for
  // this long.
  double dead_after_s = 5;
  // For tests: makes the layer between the process and the mapping.
  MakeInterposer make_interposer = nullptr;
};

// Checks everything that the description alone tells; opens nothing.
Status CheckSpec(const PoolSpec& spec);

}  // namespace jax_cxl::pool

#endif  // JAX_CXL_POOL_MEDIA_POOL_SPEC_H_
