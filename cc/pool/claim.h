#ifndef JAX_CXL_POOL_CLAIM_H_
#define JAX_CXL_POOL_CLAIM_H_

#include <cstdint>
#include <memory>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include "cc/base/status.h"
#include "cc/pool/coherence/coherence.h"
#include "cc/pool/layout/layout.h"
#include "cc/pool/mapping/mapping_guard.h"

namespace jax_cxl::pool {

// Takes the memory of a pool for a job. Creators on other hosts may want the
// same memory, and no lock of this kernel keeps them out. Hosts share only
// atomic loads and stores, so a creator uses Fischer's algorithm. It writes a
// token, waits, and then checks that the token is still there. The wait is
// longer than the time between any other creator's last check and its store of
// a token.
//
// While the object exists, a thread increments a counter in every extent. This
// shows creators on other hosts that the job is alive, even before its ranks
// have heartbeats.
//
// Thread-safe.
class Claim {
 public:
  // Takes the extents whose header pages are `pages`. `token` is the job's, and
  // `path` is for messages. Fails with kAlreadyExists if another creator takes
  // an extent at the same time.
  static Result<std::unique_ptr<Claim>> Take(std::vector<HeaderPage*> pages,
                                             const Coherence& coherence,
                                             const MappingGuard& guard,
                                             uint64_t token,
                                             const std::string& path);
  ~Claim();  // records in each extent that the job has released it
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
