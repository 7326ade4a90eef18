#ifndef JAX_CXL_NCCL_LEVELS_OFFER_H_
#define JAX_CXL_NCCL_LEVELS_OFFER_H_

#include <cstdint>
#include <span>

#include "cc/base/status.h"
#include "cc/nccl/interface/abi.h"

namespace jax_cxl::nccl {

// What the ranks of a communicator tell each other before collectives run in
// levels.
struct LevelsOffer {
  uint64_t least_bytes = 0;  // Settings::levels_bytes
  NcclUniqueId id = {};      // of place 0: for the ranks of its host
  char problem[376] = {};    // zero-terminated; empty: none

  void SetProblem(const Status& status);
};

// Returns kInvalidArgument if the ranks have different settings.
Status CheckSettings(std::span<const LevelsOffer> ranks);
// Returns why not all ranks can run collectives in levels, or OK. All ranks get
// the same result.
Status ProblemOf(std::span<const LevelsOffer> ranks);

}  // namespace jax_cxl::nccl

#endif  // JAX_CXL_NCCL_LEVELS_OFFER_H_
