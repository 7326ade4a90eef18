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

// Takes the memory of a pool for a job, against creators on other hosts, whom
// no lock of this kernel keeps out. Only loads and stores are atomic between
// hosts, so the algorithm is Fischer's: write the own token, wait for longer
// than another creator takes from its last look to its store, and look whether
// the token is still there.
//
// While the object lives, a thread counts in every extent, so that creators on
// other hosts see that the job lives before its ranks beat. Thread-safe.
class Claim {
 public:
  // `pages` are the header pages of the extents, `path` is for messages.
  // Error: kAlreadyExists if another creator takes an extent at the same time.
  static Result<std::unique_ptr<Claim>> Take(std::vector<HeaderPage*> pages,
                                             const Coherence& coherence,
                                             const MappingGuard& guard,
                                             uint64_t token,
                                             const std::string& path);
  ~Claim();  // says that the keeper has let go
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
