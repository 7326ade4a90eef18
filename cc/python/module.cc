// The Python module jax_cxl._core: pool, runtime and custom-call handlers.

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>

#include <cstdint>
#include <optional>
#include <string>

#include "cc/base/dtype.h"
#include "cc/base/status.h"
#include "cc/comm/call/tuning.h"
#include "cc/ffi/call/call_site.h"
#include "cc/ffi/call/program_sites.h"
#include "cc/ffi/errors/errors.h"
#include "cc/plan/operations.h"
#include "cc/python/shared/bindings.h"
#include "cc/python/shared/errors.h"
#include "cc/python/shared/registrations.h"
#include "xla/ffi/api/ffi.h"

namespace nb = nanobind;
using namespace nb::literals;

// The handlers, which cc/ffi defines.
XLA_FFI_DECLARE_HANDLER_SYMBOL(jax_cxl_instantiate);
XLA_FFI_DECLARE_HANDLER_SYMBOL(jax_cxl_collective);
XLA_FFI_DECLARE_HANDLER_SYMBOL(jax_cxl_rows);
XLA_FFI_DECLARE_HANDLER_SYMBOL(jax_cxl_barrier);
XLA_FFI_DECLARE_HANDLER_SYMBOL(jax_cxl_check_slices);
XLA_FFI_DECLARE_HANDLER_SYMBOL(jax_cxl_table);
XLA_FFI_DECLARE_HANDLER_SYMBOL(jax_cxl_put_residual);
XLA_FFI_DECLARE_HANDLER_SYMBOL(jax_cxl_get_residual);
XLA_FFI_DECLARE_HANDLER_SYMBOL(jax_cxl_join);

namespace jax_cxl {
namespace {

void BindTuning(nb::module_& m) {
  nb::class_<comm::Tuning> tuning(m, "Tuning", "cc/comm/call/tuning.h");
  tuning.def(nb::init<>());
  nb::list names;
  for (const comm::TuningField& field : comm::kTuningFields) {
    names.append(field.name);
    tuning.def_prop_ro(field.name, [&field](const comm::Tuning& self) {
      return self.*field.member;
    });
  }
  m.def("parse_tuning", [](const std::string& text) {
    return ValueOrRaise(comm::ParseTuning(text));
  });
  m.attr("TUNING_FIELDS") = nb::tuple(names);
}

// Adds the names that Python and C++ must share:
//  - OPERATIONS, REDUCE_OPS and DTYPES. The position of a name in a list is the
//    value of the C++ enumerator.
//  - the class Tuning (cc/comm/call/tuning.h) and TUNING_FIELDS, its fields.
void BindContract(nb::module_& m) {
  nb::list operations, reduce_ops, dtypes;
  for (int i = 0; i < plan::kNumOps; ++i) {
    const plan::Traits& traits = plan::TraitsOf(static_cast<plan::Op>(i));
    operations.append(nb::make_tuple(traits.name,
                                     traits.input == plan::Blocks::kEach,
                                     traits.output == plan::Blocks::kEach,
                                     traits.combines == plan::Combines::kYes));
  }
  for (int i = 0; i < kNumReduceOps; ++i)
    reduce_ops.append(ReduceOpName(static_cast<ReduceOp>(i)));
  for (int i = 0; i < kNumDTypes; ++i)
    dtypes.append(DTypeName(static_cast<DType>(i)));
  m.attr("OPERATIONS") = nb::tuple(operations);
  m.attr("REDUCE_OPS") = nb::tuple(reduce_ops);
  m.attr("DTYPES") = nb::tuple(dtypes);
  BindTuning(m);
}

nb::dict Registrations() {
  nb::dict targets;
  AddTargets(targets, &jax_cxl_instantiate,
             {{"jax_cxl_collective", &jax_cxl_collective},
              {"jax_cxl_rows", &jax_cxl_rows},
              {"jax_cxl_barrier", &jax_cxl_barrier}});
  AddTargets(targets, nullptr,
             {{"jax_cxl_check_slices", &jax_cxl_check_slices},
              {"jax_cxl_table", &jax_cxl_table},
              {"jax_cxl_put_residual", &jax_cxl_put_residual},
              {"jax_cxl_get_residual", &jax_cxl_get_residual}});
  return targets;
}

// Adds the programs that XLA loads, and the errors of handlers. jax_cxl._cuda
// gets both objects, too.
void BindPrograms(nb::module_& m) {
  using ffi::Failures;
  using ffi::ProgramSites;
  nb::class_<ProgramSites>(m, "ProgramSites", "cc/ffi/call/program_sites.h")
      .def("begin", &ProgramSites::Begin, "program"_a)
      .def("has_sites", &ProgramSites::HasSites, "program"_a)
      .def("complete", &ProgramSites::Complete, "program"_a, "hash"_a,
           "run_ids_from"_a)
      .def("note_numbered_line", &ProgramSites::NoteNumberedLine, "program"_a,
           "number"_a, "line"_a)
      .def(
          "note_line",
          [](ProgramSites& self, const std::string& program,
             const std::string& name, int op, int reduce_op, int dtype,
             int64_t count, const std::string& line) {
            self.NoteLine(
                program,
                ffi::CallSite::LineKey(name, op, reduce_op, dtype, count),
                line);
          },
          "program"_a, "name"_a, "op"_a, "reduce_op"_a, "dtype"_a, "count"_a,
          "line"_a)
      .def("forget_lines", &ProgramSites::ForgetLines, "program"_a);
  nb::class_<Failures>(m, "Failures", "cc/ffi/errors/errors.h")
      .def(
          "find",
          [](const Failures& self, const std::string& text) -> nb::object {
            const std::optional<Status> status = self.Find(text);
            return status ? FailureTuple(*status) : nb::none();
          },
          "Returns code, message and details of the handlers' error whose text "
          "is part of `text`, or None.",
          "text"_a);
  m.attr("PROGRAMS") = nb::cast(&ProgramSites::Get(), nb::rv_policy::reference);
  m.attr("FAILURES") = nb::cast(&Failures::Get(), nb::rv_policy::reference);
}

}  // namespace

NB_MODULE(_core, m) {
  m.doc() = "Pool, runtime and XLA custom-call handlers of jax_cxl.";
  // NumPy views of a store may live until the interpreter ends. nanobind would
  // report them as leaks.
  nb::set_leak_warnings(false);

  BindContract(m);
  BindPool(m);
  BindRuntime(m);
  BindRecorded(m);
  BindPersistentMemory(m);
  BindTables(m);
  BindResiduals(m);
  BindDispatchErrors(m);
  BindUncaughtExit(m);
  // JOIN_HANDLER is not among the registrations that a job makes when it
  // starts, because snapshots need no job. jax_cxl/_store registers it
  // separately.
  m.attr("JOIN_HANDLER") = HandlerCapsule(&jax_cxl_join);
  BindPrograms(m);
  m.def("registrations", &Registrations,
        "Custom-call targets: name -> stage -> capsule.");
  m.def(
      "type_registrations", [] { return CallSiteType("jax_cxl_call_site"); },
      "FFI types: name -> type_id and type_info capsules.");
}

}  // namespace jax_cxl
