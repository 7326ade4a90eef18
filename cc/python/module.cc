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
#include "cc/ffi/call/contract.h"
#include "cc/ffi/call/program_sites.h"
#include "cc/ffi/errors/failures.h"
#include "cc/ffi/handlers.h"
#include "cc/ffi/store/handlers.h"
#include "cc/plan/operations.h"
#include "cc/pool/media/medium.h"
#include "cc/python/interpreter/bindings.h"
#include "cc/python/job/pool.h"
#include "cc/python/job/runtime.h"
#include "cc/python/shared/errors.h"
#include "cc/python/shared/registrations.h"
#include "cc/python/store/bindings.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace jax_cxl {
namespace {

void BindTuning(nb::module_& m) {
  nb::class_<comm::Tuning> tuning(m, "Tuning", "cc/comm/call/tuning.h");
  tuning.def(nb::init<>()).def("check", &comm::CheckTuning);
  nb::list names;
  for (const comm::TuningField& field : comm::kTuningFields) {
    names.append(field.name);
    tuning.def_prop_rw(
        field.name,
        [&field](const comm::Tuning& self) { return self.*field.member; },
        [&field](comm::Tuning& self, uint64_t value) {
          self.*field.member = value;
        });
  }
  m.attr("TUNING_FIELDS") = nb::tuple(names);
}

// Adds the names that Python and C++ must share:
//  - OPERATIONS, REDUCE_OPS and DTYPES. The position of a name in a list is the
//    value of the C++ enumerator.
//  - TARGETS and ATTRIBUTE_TYPES, of custom calls (cc/ffi/call/contract.h).
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
  nb::list targets;
  for (const char* target : ffi::kTargets) targets.append(target);
  m.attr("TARGETS") = nb::tuple(targets);
  nb::dict types;
  for (auto [name, type] : ffi::kAttributeTypes) types[nb::cast(name)] = type;
  m.attr("ATTRIBUTE_TYPES") = types;
  nb::list media;
  for (const pool::Medium* medium : pool::Medium::All())
    media.append(medium->name());
  m.attr("MEDIA") = nb::tuple(media);
  BindTuning(m);
}

nb::dict Registrations() {
  nb::dict targets;
  AddTargets(targets, &jax_cxl_instantiate,
             {{ffi::kCollectiveTarget, &jax_cxl_collective},
              {ffi::kRowsTarget, &jax_cxl_rows},
              {ffi::kBarrierTarget, &jax_cxl_barrier}});
  AddTargets(targets, nullptr,
             {{ffi::kCheckSlicesTarget, &jax_cxl_check_slices},
              {ffi::kTableTarget, &jax_cxl_table},
              {ffi::kPutResidualTarget, &jax_cxl_put_residual},
              {ffi::kGetResidualTarget, &jax_cxl_get_residual}});
  return targets;
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
  BindSessions(m);
  BindTables(m);
  BindResiduals(m);
  BindDispatchErrors(m);
  BindUncaughtExit(m);
  // JOIN_HANDLER is not among the registrations that a job makes when it
  // starts, because snapshots need no job. jax_cxl/_store registers it
  // separately.
  m.attr("JOIN_HANDLER") = HandlerCapsule(&jax_cxl_join);
  m.def(
      "program_sites",
      [] {
        return nb::capsule(&ffi::ProgramSites::Get(), "jax_cxl.ProgramSites");
      },
      "Returns a capsule with the call sites of this process, for "
      "jax_cxl._cuda.");
  m.def(
      "complete_program",
      [](const std::string& program, uint64_t hash, uint32_t run_ids_from) {
        ffi::ProgramSites::Get().Complete(program, hash, run_ids_from);
      },
      "Call it when XLA has made all call sites of a program that it loads. "
      "`hash` is equal on all ranks that load the program, and differs between "
      "programs. `run_ids_from` is where XLA begins to count its launches.",
      "program"_a, "hash"_a, "run_ids_from"_a);
  m.def(
      "begin_program",
      [](const std::string& program) {
        ffi::ProgramSites::Get().Begin(program);
      },
      "Call it before XLA makes the call sites of a program.", "program"_a);
  m.def(
      "has_sites",
      [](const std::string& program) {
        return ffi::ProgramSites::Get().HasSites(program);
      },
      "Returns whether XLA has made call sites of a program that is not "
      "complete.",
      "program"_a);
  m.def(
      "note_numbered_site",
      [](const std::string& program, int64_t number, const std::string& line) {
        ffi::ProgramSites::Get().NoteNumberedLine(program, number, line);
      },
      "Notes the source line of a call to which the compiler hook has given a "
      "number. Call it before the program is complete.",
      "program"_a, "number"_a, "line"_a);
  m.def(
      "failures",
      [] { return nb::capsule(&ffi::Failures::Get(), "jax_cxl.Failures"); },
      "Returns a capsule with the failures of this process, for "
      "jax_cxl._cuda.");
  m.def(
      "find_failure",
      [](const std::string& text) -> nb::object {
        std::optional<Status> status = ffi::Failures::Get().Find(text);
        if (!status) return nb::none();
        return FailureTuple(*status);
      },
      "Returns code, message and details of the handlers' error whose text is "
      "part of `text`, or None.",
      "text"_a);
  m.def(
      "note_site",
      [](const std::string& program, const std::string& name, int op,
         int reduce_op, int dtype, int64_t count, const std::string& line) {
        ffi::ProgramSites::Get().NoteLine(
            program, ffi::CallSite::LineKey(name, op, reduce_op, dtype, count),
            line);
      },
      "Notes where a program calls a collective with these attributes.",
      "program"_a, "name"_a, "op"_a, "reduce_op"_a, "dtype"_a, "count"_a,
      "line"_a);
  m.def(
      "forget_sites",
      [](const std::string& program) {
        ffi::ProgramSites::Get().ForgetLines(program);
      },
      "Forgets the notes about the program's calls.", "program"_a);
  m.def("registrations", &Registrations,
        "Custom-call targets: name -> stage -> capsule.");
  m.def(
      "type_registrations", [] { return CallSiteType("jax_cxl_call_site"); },
      "FFI types: name -> type_id and type_info capsules.");
}

}  // namespace jax_cxl
