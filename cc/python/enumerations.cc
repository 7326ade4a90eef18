#include "cc/python/enumerations.h"

#include <string_view>

#include "cc/base/dtype.h"
#include "cc/plan/operations.h"

namespace jax_cxl {
namespace nb = nanobind;
namespace {

nb::str Text(std::string_view text) {
  return nb::str(text.data(), text.size());
}

nb::tuple Row(const plan::Traits& traits) {
  return nb::make_tuple(Text(traits.name), traits.input == plan::Blocks::kEach,
                        traits.output == plan::Blocks::kEach,
                        traits.combines == plan::Combines::kYes);
}

}  // namespace

void BindEnumerations(nb::module_& m) {
  nb::list operations, reduce_ops, dtypes;
  for (int i = 0; i < plan::kNumOps; ++i)
    operations.append(Row(plan::TraitsOf(static_cast<plan::Op>(i))));
  for (int i = 0; i < kNumReduceOps; ++i)
    reduce_ops.append(Text(ReduceOpName(static_cast<ReduceOp>(i))));
  for (int i = 0; i < kNumDTypes; ++i)
    dtypes.append(Text(DTypeName(static_cast<DType>(i))));
  m.attr("OPERATIONS") = nb::tuple(operations);
  m.attr("REDUCE_OPS") = nb::tuple(reduce_ops);
  m.attr("DTYPES") = nb::tuple(dtypes);
}

}  // namespace jax_cxl
