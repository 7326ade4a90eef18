// The Python module jax_cxl._core: pool, runtime and custom-call handlers.

#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cc/base/status.h"
#include "cc/comm/call/tuning.h"
#include "cc/comm/runtime.h"
#include "cc/ffi/call/call_site.h"
#include "cc/ffi/call/contract.h"
#include "cc/ffi/call/program_sites.h"
#include "cc/ffi/errors/failures.h"
#include "cc/ffi/handlers.h"
#include "cc/ffi/store/handlers.h"
#include "cc/pool/job_record.h"
#include "cc/python/contract.h"
#include "cc/python/dispatch_errors.h"
#include "cc/python/errors.h"
#include "cc/python/persistent_memory.h"
#include "cc/python/pool.h"
#include "cc/python/recorded.h"
#include "cc/python/registrations.h"
#include "cc/python/regroup.h"
#include "cc/python/residuals.h"
#include "cc/python/sessions.h"
#include "cc/python/stats.h"
#include "cc/python/tables.h"
#include "cc/python/uncaught_exit.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace jax_cxl {
namespace {

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
  // Views of a store may live until the interpreter ends.
  nb::set_leak_warnings(false);

  BindPool(m);

  BindContract(m);

  m.def(
      "start",
      [](PyPool& pool, const std::vector<std::pair<int32_t, int>>& local,
         const std::vector<int>& absent, int generation, uint64_t slot_bytes,
         int num_slots, const comm::Tuning& tuning, double warn_after,
         double timeout, double heartbeat_timeout) {
        comm::Options options;
        options.slot_bytes = slot_bytes;
        options.num_slots = num_slots;
        options.tuning = tuning;
        options.warn_after_s = warn_after;
        options.timeout_s = timeout;
        options.heartbeat_timeout_s = heartbeat_timeout;
        std::vector<comm::Runtime::LocalRank> ranks;
        for (auto [ordinal, rank] : local) ranks.push_back({ordinal, rank});
        RaiseIfError(comm::Runtime::Start(pool.Release(), ranks, absent,
                                          generation, options));
      },
      "Takes over the pool and starts an endpoint for each (device ordinal, "
      "rank). The ranks `absent` have left the job.",
      "pool"_a, "local"_a, nb::kw_only(), "absent"_a, "generation"_a,
      "slot_bytes"_a, "num_slots"_a, "tuning"_a, "warn_after"_a, "timeout"_a,
      "heartbeat_timeout"_a);

  m.def(
      "runtime",
      []() {
        auto runtime = comm::Runtime::Current();
        if (runtime == nullptr)
          RaiseIfError(
              Error(Code::kFailedPrecondition,
                    "jax_cxl is not running; call jax_cxl.initialize() first"));
        return nb::capsule(
            new std::shared_ptr<comm::Runtime>(std::move(runtime)),
            "jax_cxl.Runtime", [](void* held) noexcept {
              delete static_cast<std::shared_ptr<comm::Runtime>*>(held);
            });
      },
      "Returns a capsule that holds the runtime, for jax_cxl._cuda.");

  // Both functions join threads that may be inside Python callbacks.
  m.def("stop", &comm::Runtime::Stop,
        "Releases the pool. `reason` is the status or exception with which the "
        "program ends, for the other ranks; empty if there was no error.",
        "reason"_a, "program_ends"_a, nb::call_guard<nb::gil_scoped_release>());
  m.def("failed", &comm::Runtime::Failed,
        "Returns True if a rank of this process has given up.");
  m.def(
      "note_failed_program",
      [](const std::string& reason) {
        if (auto runtime = comm::Runtime::Current())
          runtime->NoteFailedProgram(reason);
      },
      "Tells the other ranks that a program over several processes has failed "
      "in this process, outside of its collectives.",
      "reason"_a);
  m.def("stats", []() {
    auto runtime = comm::Runtime::Current();
    return StatsDict(runtime == nullptr ? comm::Stats() : runtime->stats());
  });
  m.def(
      "program_sites",
      [] {
        return nb::capsule(&ffi::ProgramSites::Get(), "jax_cxl.ProgramSites");
      },
      "Returns a capsule with the call sites of this process, for "
      "jax_cxl._cuda.");
  m.def(
      "complete_program",
      [](const std::string& program) {
        ffi::ProgramSites::Get().Complete(program);
      },
      "Call it when XLA has made all call sites of a program that it loads.",
      "program"_a);
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
  BindDispatchErrors(m);
  BindUncaughtExit(m);
  m.def(
      "read_job_record",
      [](int fd, uint64_t offset, const std::string& name) {
        return ValueOrRaise(pool::JobRecord::Read(fd, offset, name));
      },
      "Copies the control pages of the pool at `offset` of an open file.",
      "fd"_a, "offset"_a, "name"_a);
  BindRecorded(m);
  BindPersistentMemory(m);
  BindSessions(m);
  BindTables(m);
  BindResiduals(m);
  BindRegroup(m);
}

}  // namespace jax_cxl
