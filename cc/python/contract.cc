#include "cc/python/contract.h"

#include <cstdint>
#include <string_view>

#include "cc/base/dtype.h"
#include "cc/comm/call/tuning.h"
#include "cc/ffi/call/contract.h"
#include "cc/plan/operations.h"
#include "cc/pool/media/medium.h"
#include "cc/python/shared/errors.h"

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

void BindTuning(nb::module_& m) {
  nb::class_<comm::Tuning> tuning(m, "Tuning", "cc/comm/call/tuning.h");
  tuning.def(nb::init<>()).def("check", [](const comm::Tuning& self) {
    RaiseIfError(comm::CheckTuning(self));
  });
  nb::list names;
  for (const comm::TuningField& field : comm::kTuningFields) {
    names.append(Text(field.name));
    tuning.def_prop_rw(
        field.name,
        [&field](const comm::Tuning& self) { return self.*field.member; },
        [&field](comm::Tuning& self, uint64_t value) {
          self.*field.member = value;
        });
  }
  m.attr("TUNING_FIELDS") = nb::tuple(names);
}

}  // namespace

void BindContract(nb::module_& m) {
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
  nb::list targets;
  for (const char* target : ffi::kTargets) targets.append(target);
  m.attr("TARGETS") = nb::tuple(targets);
  nb::dict types;
  for (auto [name, type] : ffi::kAttributeTypes) types[Text(name)] = Text(type);
  m.attr("ATTRIBUTE_TYPES") = types;
  nb::list media;
  for (const pool::Medium* medium : pool::Medium::All())
    media.append(Text(medium->name()));
  m.attr("MEDIA") = nb::tuple(media);
  BindTuning(m);
}

}  // namespace jax_cxl
