#ifndef JAX_CXL_PLAN_BOUNDS_H_
#define JAX_CXL_PLAN_BOUNDS_H_

#include <cstdint>

#include "cc/plan/plan.h"

namespace jax_cxl::plan {

// Bytes that the rank of a request moves to and from the pool.
struct PoolBytes {
  uint64_t written = 0;
  uint64_t read = 0;

  bool operator==(const PoolBytes&) const = default;
};

// The fewest that an operation on large blocks can do with, when the work is
// spread evenly, every rank may read every slot, and a reduction is one fold
// over the inputs (so no partial results are handed on). Plans reach it but for
// rounding to slots; for small blocks they read more to synchronise less.
PoolBytes LowerBound(const Request& request);

}  // namespace jax_cxl::plan

#endif  // JAX_CXL_PLAN_BOUNDS_H_
