#include "cc/comm/runtime.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cc/base/status.h"
#include "cc/comm/call/tuning.h"
#include "cc/comm/health/peers.h"
#include "cc/comm/health/regroup.h"
#include "cc/python/job/pool.h"
#include "cc/python/shared/bindings.h"
#include "cc/python/shared/errors.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace jax_cxl {

namespace {

// Returns the runtime of this process. Raises an exception if there is none.
std::shared_ptr<comm::Runtime> RunningRuntime() {
  auto runtime = comm::Runtime::Current();
  if (runtime == nullptr)
    RaiseIfError(
        Error(Code::kFailedPrecondition,
              "jax_cxl is not running; call jax_cxl.initialize() first"));
  return runtime;
}

// Adds the functions by which jax_cxl/_job/regroup.py finds out which ranks are
// lost, and by which the surviving ranks agree on a new pool.
void BindRegroup(nb::module_& m) {
  m.def(
      "rank_lost",
      [](int rank) { return !RunningRuntime()->peers()->Alive(rank).ok(); },
      "rank"_a);
  m.def(
      "rank_left",
      [](int rank) { return !RunningRuntime()->peers()->Left(rank).ok(); },
      "rank"_a);
  m.def(
      "rank_name",
      [](int rank) { return RunningRuntime()->peers()->Name(rank); }, "rank"_a);
  m.def(
      "join_attempt",
      [](int rank, uint64_t attempt) {
        comm::JoinAttempt(RunningRuntime()->pool(rank), rank, attempt);
      },
      "rank"_a, "attempt"_a);
  m.def(
      "joined_attempt",
      [](int rank, uint64_t attempt) {
        return comm::JoinedAttempt(*RunningRuntime()->pool(), rank, attempt);
      },
      "rank"_a, "attempt"_a);
  m.def(
      "decide_attempt",
      [](int rank, uint64_t attempt, std::vector<int> members,
         std::string place) {
        return comm::DecideAttempt(RunningRuntime()->pool(rank), rank, attempt,
                                   {std::move(members), std::move(place)});
      },
      "rank"_a, "attempt"_a, "members"_a, "place"_a);
  m.def(
      "decided_attempt",
      [](int rank, uint64_t attempt) -> nb::object {
        std::optional<comm::Decision> decision =
            comm::DecidedAttempt(*RunningRuntime()->pool(), rank, attempt);
        if (!decision) return nb::none();
        return nb::make_tuple(decision->members, decision->place);
      },
      "rank"_a, "attempt"_a);
}

}  // namespace

void BindRuntime(nb::module_& m) {
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
        return comm::Runtime::Start(pool.Release(), ranks, absent, generation,
                                    options);
      },
      "Takes over the pool and starts an endpoint for each (device ordinal, "
      "rank). The ranks `absent` have left the job.",
      "pool"_a, "local"_a, nb::kw_only(), "absent"_a, "generation"_a,
      "slot_bytes"_a, "num_slots"_a, "tuning"_a, "warn_after"_a, "timeout"_a,
      "heartbeat_timeout"_a);

  m.def(
      "runtime",
      []() {
        return nb::capsule(
            new std::shared_ptr<comm::Runtime>(RunningRuntime()),
            "jax_cxl.Runtime", [](void* held) noexcept {
              delete static_cast<std::shared_ptr<comm::Runtime>*>(held);
            });
      },
      "Returns a capsule that holds the runtime, for jax_cxl._cuda.");

  m.def(
      "exchange",
      [](std::string_view topic, std::string_view what, const nb::bytes& data,
         std::optional<double> timeout) {
        const auto runtime = RunningRuntime();
        Result<std::vector<std::string>> all = [&] {
          nb::gil_scoped_release release;
          return runtime->exchange()->AllGather(
              {topic, what, {data.c_str(), data.size()}}, timeout, [] {
                nb::gil_scoped_acquire acquire;
                return PyErr_CheckSignals() != 0;
              });
        }();
        if (PyErr_Occurred()) throw nb::python_error();
        nb::list found;
        for (const std::string& each : ValueOrRaise(std::move(all)))
          found.append(nb::bytes(each.data(), each.size()));
        return found;
      },
      "Returns what each process has given to this exchange "
      "(cc/comm/exchange.h), in the order of the processes.",
      "topic"_a, "what"_a, "data"_a, "timeout"_a = nb::none());

  // Both functions run without Python's lock, because they join threads that
  // may need it for a Python callback.
  m.def("stop", &comm::Runtime::Stop,
        "Releases the pool. `reason` is the status or exception with which the "
        "program ends, for the other ranks; empty if there was no error.",
        "reason"_a, "program_ends"_a, nb::call_guard<nb::gil_scoped_release>());
  m.def("failed", &comm::Runtime::Failed);
  m.def(
      "note_failed_program",
      [](const std::string& reason) {
        if (auto runtime = comm::Runtime::Current())
          runtime->NoteFailedProgram(reason);
      },
      "reason"_a);
  m.def(
      "note_failed_callbacks",
      [](int count) {
        if (auto runtime = comm::Runtime::Current())
          runtime->NoteFailedCallbacks(count);
      },
      "count"_a);
  m.def("stats", []() {
    auto runtime = comm::Runtime::Current();
    return StatsDict(runtime == nullptr ? comm::Stats() : runtime->stats());
  });
  BindRegroup(m);
}

}  // namespace jax_cxl
