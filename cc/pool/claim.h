#ifndef JAX_CXL_POOL_CLAIM_H_
#define JAX_CXL_POOL_CLAIM_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include "cc/base/status.h"
#include "cc/pool/coherence/coherence.h"
#include "cc/pool/layout/layout.h"
#include "cc/pool/mapping/map.h"
#include "cc/pool/mapping/mapping_guard.h"
#include "cc/pool/open/file.h"

namespace jax_cxl::pool {

// The place of a header that a dead job has left inside a part of a new pool.
struct OldHeader {
  size_t part;
  uint64_t offset;  // relative to the part
};

// Looks for other jobs in the parts of `files` that this process is about to
// format. A process of such a job on this kernel counts as living if the kernel
// knows it. A process on another kernel counts as living if its heartbeat
// advances within `dead_after_s`. In a file, a pool begins at the part's
// offset. On a device, pools of other jobs may begin anywhere and overlap the
// part.
//
// Returns the headers that dead jobs have left. Fails with kAlreadyExists if a
// job lives, and names one of its processes.
Result<std::vector<OldHeader>> CheckNoJobLives(
    const std::vector<MapPiece>& parts, const std::vector<PoolFile>& files,
    double dead_after_s);

// Takes the memory of a pool for a job. Creators on other hosts may want the
// same memory, and no lock of this kernel excludes them. Hosts share only
// atomic loads and stores, so this is Fischer's algorithm: write a token, wait
// for longer than any creator takes from its last check to its store, and check
// that the token is still there.
//
// While the object lives, a thread increments a counter in every extent.
// Creators on other hosts then see that the job lives, even before its ranks
// have heartbeats.
//
// Thread-safe.
class Claim {
 public:
  // `pages` are the header pages of the extents; `path` is for messages. Fails
  // with kAlreadyExists if another creator takes an extent at the same time.
  static Result<std::unique_ptr<Claim>> Take(std::vector<HeaderPage*> pages,
                                             const Coherence& coherence,
                                             const MappingGuard& guard,
                                             uint64_t token,
                                             const std::string& path);
  ~Claim();  // records that the keeper has released it
  Claim(const Claim&) = delete;
  Claim& operator=(const Claim&) = delete;

 private:
  Claim(std::vector<HeaderPage*> pages, const Coherence& coherence,
        const MappingGuard& guard, uint64_t token);
  void Beat(const std::stop_token& stop);

  std::vector<HeaderPage*> pages_;
  Coherence coherence_;
  const MappingGuard& guard_;
  uint64_t token_;
  std::jthread beats_;
};

}  // namespace jax_cxl::pool

#endif  // JAX_CXL_POOL_CLAIM_H_
