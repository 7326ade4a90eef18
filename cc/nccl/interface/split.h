#ifndef JAX_CXL_NCCL_INTERFACE_SPLIT_H_
#define JAX_CXL_NCCL_INTERFACE_SPLIT_H_

#include <vector>

#include "cc/nccl/interface/unique_id.h"

namespace jax_cxl::nccl {

// What a rank asks for when a communicator is split. The part uses `token` if
// this rank becomes its first rank.
struct SplitChoice {
  int color = 0;
  int key = 0;
  PoolToken token;
};

// The part of a rank.
struct SplitPart {
  PoolToken token;
  int rank = 0;
  int size = 0;
};

// Returns the part of `rank`: the ranks of its color, sorted by key. Ranks with
// equal keys are sorted by rank.
SplitPart PartOf(const std::vector<SplitChoice>& choices, int rank);

}  // namespace jax_cxl::nccl

#endif  // JAX_CXL_NCCL_INTERFACE_SPLIT_H_
