#include "cc/plan/plan.h"

namespace jax_cxl::plan {

uint64_t InputBytes(const Request& request) {
  const uint64_t block = request.count * request.element_bytes;
  const bool each = TraitsOf(request.op).input == Blocks::kEach;
  return each ? block * request.num_ranks : block;
}

uint64_t OutputBytes(const Request& request) {
  const uint64_t block = request.count * request.element_bytes;
  const Rows& rows = request.rows;
  switch (TraitsOf(request.op).output) {
    case Blocks::kEach:
      return block * request.num_ranks;
    case Blocks::kRows:
      return rows.table == 0 ? 0 : block / rows.table * rows.taken;
    default:
      return block;
  }
}

}  // namespace jax_cxl::plan
