#include "cc/plan/operations.h"

#include <cstddef>
#include <iterator>

namespace jax_cxl::plan {

const Traits& TraitsOf(Op op) {
  static constexpr Traits kTraits[] = {
#define ROW(constant, name, planner, input, output, root, combines) \
  {name, Blocks::input, Blocks::output, Root::root, Combines::combines},
      JAX_CXL_OPERATIONS(ROW)
#undef ROW
  };
  static constexpr Traits kUnknown = {.name = "unknown op"};
  const auto index = static_cast<size_t>(op);
  return index < std::size(kTraits) ? kTraits[index] : kUnknown;
}

}  // namespace jax_cxl::plan
