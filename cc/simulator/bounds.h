#ifndef JAX_CXL_SIMULATOR_BOUNDS_H_
#define JAX_CXL_SIMULATOR_BOUNDS_H_

#include <cstdint>

#include "cc/plan/plan.h"

namespace jax_cxl::plan {

// Numbers of bytes that are written to the pool and read from it.
struct PoolBytes {
  uint64_t written = 0;
  uint64_t read = 0;

  bool operator==(const PoolBytes&) const = default;
};

// Returns the smallest numbers of bytes that rank `request.rank` has to move,
// for an operation on large blocks. The bound assumes that the work is spread
// evenly, that every rank may read every slot, and that a reduction folds all
// inputs at once (no rank passes on partial results). Plans reach the bound, up
// to rounding to slots. For small blocks, plans read more bytes than the bound,
// so that they have to synchronize less often.
PoolBytes LowerBound(const Request& request);

}  // namespace jax_cxl::plan

#endif  // JAX_CXL_SIMULATOR_BOUNDS_H_
