#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <vector>

#include "cc/base/status.h"
#include "cc/base/text.h"
#include "cc/comm/record/recorded_calls.h"
#include "cc/comm/runtime.h"
#include "cc/pool/job_record.h"
#include "cc/python/shared/bindings.h"
#include "cc/python/shared/errors.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace jax_cxl {
namespace {

nb::dict Describe(const comm::RecordedCall& call) {
  nb::dict entry;
  entry["number"] = call.number;
  entry["identity"] = call.identity;
  entry["group"] = call.group;
  entry["name"] = call.name;
  entry["what"] = call.what;
  entry["site"] = call.site;
  entry["submitted"] = call.submitted;
  entry["started"] = call.started;
  entry["finished"] = call.finished;
  entry["code"] = CodeName(call.code);
  entry["waiting_for"] = call.waiting_for;
  return entry;
}

nb::list Describe(const std::vector<comm::RecordedOperation>& counted) {
  nb::list operations;
  for (const comm::RecordedOperation& from : counted) {
    nb::dict operation;
    operation["name"] = from.name;
    operation["calls"] = from.calls;
    operation["bytes"] = from.bytes;
    operation["seconds_waited"] = from.waited;
    operation["seconds_worked"] = from.worked;
    operation["failed"] = from.failed;
    operations.append(operation);
  }
  return operations;
}

// Returns a dict with an entry for each group that contains `rank`. The key of
// the entry is the hash of the group, and its value is the list of the group's
// ranks.
nb::dict Groups(const pool::JobRecord& job, int rank) {
  const pool::Doorbells doorbells = job.doorbells();
  const pool::RankPage& page = job.rank_page(rank);
  nb::dict groups;
  for (int i = 0; i < pool::kMaxChannels; ++i) {
    if (doorbells.Read(&page.channels[i].version) == 0) break;
    const pool::GroupMembers& group = job.recorder(rank).groups[i];
    std::vector<int> members;
    for (int r = 0; r < job.world_size(); ++r)
      if (group.bits[r / 64] >> r % 64 & 1) members.push_back(r);
    groups[nb::int_(page.channels[i].place.group)] = members;
  }
  return groups;
}

nb::dict Rank(const pool::JobRecord& job, int rank, size_t calls) {
  const pool::Doorbells doorbells = job.doorbells();
  const pool::RankPage& page = job.rank_page(rank);
  const pool::Recorder& recorder = job.recorder(rank);
  nb::dict entry;
  entry["rank"] = rank;
  entry["registered"] = doorbells.Read(&page.info.ready) != 0;
  entry["pid"] = page.info.process.pid;
  entry["process_start"] = page.info.process.process_start;
  entry["pid_namespace"] = page.info.process.pid_namespace;
  entry["process_index"] = page.info.process_index;
  entry["device_id"] = page.info.device_id;
  entry["boot_id"] = PrintableText(page.info.process.boot_id);
  entry["host"] = PrintableText(page.info.process.host);
  entry["heartbeat"] = doorbells.Read(&page.heartbeat.word);
  // The time of the rank's last sign of life, by two clocks of its host:
  // `realtime` counts from 1970, and `steady` counts from the host's boot.
  const pool::ClockReading& sign = recorder.clock.last;
  entry["last_sign_of_life"] = 1e-9 * static_cast<double>(sign.realtime_ns);
  entry["last_sign_of_life_steady"] =
      1e-9 * static_cast<double>(sign.steady_ns);
  entry["gave_up"] = nb::none();
  if (doorbells.Read(&page.abort.raised) != 0) {
    nb::dict abort;
    abort["code"] = CodeName(static_cast<Code>(page.abort.code));
    abort["reason"] = PrintableText(page.abort.reason);
    entry["gave_up"] = abort;
  }
  entry["groups"] = Groups(job, rank);
  entry["submitted_calls"] = doorbells.Read(&recorder.submitted_calls.word);
  entry["operations"] =
      Describe(comm::ReadOperations(recorder, doorbells.coherence()));
  nb::list recorded;
  for (const comm::RecordedCall& call :
       comm::ReadCalls(recorder, doorbells, calls))
    recorded.append(Describe(call));
  entry["calls"] = recorded;
  return entry;
}

}  // namespace

void BindRecorded(nb::module_& m) {
  nb::class_<pool::JobRecord>(
      m, "JobRecord", "A private copy of a pool's control pages and recorders.")
      .def_prop_ro("world_size", &pool::JobRecord::world_size)
      .def_prop_ro("extent_index",
                   [](const pool::JobRecord& self) {
                     return self.header().extent_index;
                   })
      .def("rank", &Rank, "rank"_a, "calls"_a,
           "Returns the identity of a rank, and its newest `calls` calls.")
      .def("to_bytes", [](const pool::JobRecord& self) {
        return nb::bytes(self.data(), self.size());
      });
  m.def("read_job_record", &pool::JobRecord::Read,
        "Copies the control pages of the pool at `offset` of an open file.",
        "fd"_a, "offset"_a, "name"_a);
  m.def(
      "operations",
      [] {
        auto runtime = comm::Runtime::Current();
        return Describe(runtime == nullptr
                            ? std::vector<comm::RecordedOperation>()
                            : runtime->operations());
      },
      "Returns sums over the calls of each operation, for this process's "
      "ranks.");
}

}  // namespace jax_cxl
