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
#include "cc/comm/health/peers.h"
#include "cc/comm/health/regroup.h"
#include "cc/comm/runtime.h"
#include "cc/ffi/call_site.h"
#include "cc/ffi/failures.h"
#include "cc/ffi/handlers.h"
#include "cc/ffi/program_sites.h"
#include "cc/pool/job_record.h"
#include "cc/pool/layout/geometry.h"
#include "cc/pool/memory_check.h"
#include "cc/pool/pool.h"
#include "cc/python/dispatch_errors.h"
#include "cc/python/enumerations.h"
#include "cc/python/errors.h"
#include "cc/python/persistent_memory.h"
#include "cc/python/recorded.h"
#include "cc/python/registrations.h"
#include "cc/python/regroup.h"
#include "cc/python/stats.h"
#include "cc/python/uncaught_exit.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace jax_cxl {
namespace {

// In tests, makes the interposer between this process and its pools.
pool::MakeInterposer& TheInterposer() {
  // Never destroyed: pools may still be opened while the process exits.
  static auto& make = *new pool::MakeInterposer;
  return make;
}

pool::PoolSpec MakeSpec(const std::string& kind, std::vector<std::string> paths,
                        uint64_t bytes, int devices_per_path, uint64_t offset,
                        const std::string& coherence) {
  pool::PoolSpec spec;
  spec.kind = kind == "dax"    ? pool::PoolKind::kDax
              : kind == "file" ? pool::PoolKind::kFile
                               : pool::PoolKind::kShm;
  spec.paths = std::move(paths);
  spec.bytes = bytes;
  spec.devices_per_path = devices_per_path;
  spec.offset = offset;
  spec.coherence = ValueOrRaise(pool::ParseCoherenceMode(coherence));
  spec.make_interposer = TheInterposer();
  return spec;
}

// A mapped pool until the runtime takes it over.
class PyPool {
 public:
  explicit PyPool(std::unique_ptr<pool::Pool> pool) {
    hosts_.push_back({std::move(pool), {}, nullptr});
  }

  PyPool(PyPool&&) = default;

  // Returns the pool that this process created or attached to first.
  pool::Pool* get() const {
    if (hosts_.empty())
      RaiseIfError(Error(Code::kFailedPrecondition,
                         "the pool already belongs to the runtime"));
    return hosts_[0].pool.get();
  }

  void Register(int rank, int process_index, int device_id) {
    const pool::Pool* first = get();
    // An interposer emulates one host, so each rank gets its own.
    if (first->spec().make_interposer && !hosts_.back().ranks.empty()) {
      hosts_.push_back(
          {ValueOrRaise(pool::Pool::Attach(first->spec(), first->world_size(),
                                           first->token())),
           {},
           nullptr});
    }
    hosts_.back().ranks.push_back(rank);
    comm::Register(hosts_.back().pool.get(), rank, process_index, device_id);
  }

  std::vector<comm::Runtime::Host> Release() {
    get();
    return std::exchange(hosts_, {});
  }

 private:
  std::vector<comm::Runtime::Host> hosts_;
};

nb::dict Registrations() {
  nb::dict targets;
  AddTargets(targets, &jax_cxl_instantiate,
             {{"jax_cxl_collective", &jax_cxl_collective},
              {"jax_cxl_rows", &jax_cxl_rows},
              {"jax_cxl_barrier", &jax_cxl_barrier}});
  return targets;
}

}  // namespace

NB_MODULE(_core, m) {
  m.doc() = "Pool, runtime and XLA custom-call handlers of jax_cxl.";

  nb::class_<PyPool>(m, "Pool")
      .def_static(
          "create",
          [](const std::string& kind, std::vector<std::string> paths,
             uint64_t bytes, int devices_per_path, uint64_t offset,
             const std::string& coherence, int world_size, double dead_after) {
            pool::PoolSpec spec = MakeSpec(kind, std::move(paths), bytes,
                                           devices_per_path, offset, coherence);
            spec.dead_after_s = dead_after;
            nb::gil_scoped_release release;
            auto pool = pool::Pool::Create(spec, world_size);
            nb::gil_scoped_acquire acquire;
            return PyPool(ValueOrRaise(std::move(pool)));
          },
          nb::kw_only(), "kind"_a, "paths"_a, "bytes"_a, "devices_per_path"_a,
          "offset"_a, "coherence"_a, "world_size"_a, "dead_after"_a = 5.0)
      .def_static(
          "attach",
          [](const std::string& kind, std::vector<std::string> paths,
             uint64_t bytes, int devices_per_path, uint64_t offset,
             const std::string& coherence, int world_size, uint64_t token) {
            pool::PoolSpec spec = MakeSpec(kind, std::move(paths), bytes,
                                           devices_per_path, offset, coherence);
            return PyPool(
                ValueOrRaise(pool::Pool::Attach(spec, world_size, token)));
          },
          nb::kw_only(), "kind"_a, "paths"_a, "bytes"_a, "devices_per_path"_a,
          "offset"_a, "coherence"_a, "world_size"_a, "token"_a)
      .def("register", &PyPool::Register, "rank"_a, "process_index"_a,
           "device_id"_a)
      .def(
          "registered",
          [](PyPool& self, int rank) {
            return comm::Registered(*self.get(), rank);
          },
          "rank"_a)
      .def(
          "boot_id",
          [](PyPool& self, int rank) {
            return comm::BootIdOf(*self.get(), rank);
          },
          "Boot id of the kernel under which a registered rank runs.", "rank"_a)
      .def(
          "measure_memory",
          [](PyPool& self) {
            const pool::MemorySpeed speed =
                ValueOrRaise(pool::MeasureMemory(*self.get()));
            nb::dict found;
            found["bytes"] = speed.bytes;
            found["load_ns"] = speed.load_ns;
            found["store_ns"] = speed.store_ns;
            found["load_gbs"] = speed.load_gbs;
            found["store_gbs"] = speed.store_gbs;
            found["non_temporal_store_gbs"] = speed.non_temporal_store_gbs;
            found["write_back_gbs"] = speed.write_back_gbs;
            return found;
          },
          "cc/pool/memory_check.h; for `python -m jax_cxl doctor`.")
      .def("check_words",
           [](PyPool& self) { return pool::CheckWords(*self.get()); })
      .def(
          "check_word_address",
          [](PyPool& self, uint64_t index) {
            return reinterpret_cast<uintptr_t>(
                pool::CheckWord(*self.get(), index));
          },
          "index"_a)
      .def(
          "write_back_check_word",
          [](PyPool& self, uint64_t index) {
            pool::WriteBackCheckWord(*self.get(), index);
          },
          "index"_a)
      .def(
          "store_check_word",
          [](PyPool& self, uint64_t index, uint64_t value, bool write_back) {
            pool::StoreCheckWord(*self.get(), index, value, write_back);
          },
          "index"_a, "value"_a, "write_back"_a)
      .def(
          "load_check_word",
          [](PyPool& self, uint64_t index, bool drop) {
            return pool::LoadCheckWord(*self.get(), index, drop);
          },
          "index"_a, "drop"_a)
      .def(
          "pass_doorbell",
          [](PyPool& self, bool first, int rounds, double timeout) {
            return ValueOrRaise(
                pool::PassDoorbell(*self.get(), first, rounds, timeout));
          },
          "first"_a, "rounds"_a, "timeout"_a)
      .def("unlink", [](PyPool& self) { self.get()->Unlink(); })
      .def_prop_ro("token", [](PyPool& self) { return self.get()->token(); })
      .def_prop_ro("total_bytes",
                   [](PyPool& self) { return self.get()->total_bytes(); })
      .def(
          "opened_file",
          [](PyPool& self) {
            return std::pair(self.get()->fd(), self.get()->spec().offset);
          },
          "Descriptor of the pool's (first) file, and the pool's offset in it: "
          "the arguments of read_job_record.");

  nb::class_<comm::Tuning>(m, "Tuning", "cc/comm/call/tuning.h")
      .def(nb::init<>())
      .def_rw("slot_bytes", &comm::Tuning::slot_bytes)
      .def_rw("num_slots", &comm::Tuning::num_slots)
      .def_rw("inline_bytes", &comm::Tuning::inline_bytes)
      .def_rw("all_read_bytes", &comm::Tuning::all_read_bytes)
      .def_rw("past_caches_bytes", &comm::Tuning::past_caches_bytes)
      .def_rw("levels_all_reduce_bytes", &comm::Tuning::levels_all_reduce_bytes)
      .def_rw("levels_reduce_scatter_bytes",
              &comm::Tuning::levels_reduce_scatter_bytes)
      .def_rw("levels_all_gather_bytes", &comm::Tuning::levels_all_gather_bytes)
      .def_rw("levels_all_to_all_bytes", &comm::Tuning::levels_all_to_all_bytes)
      .def_rw("levels_broadcast_bytes", &comm::Tuning::levels_broadcast_bytes)
      .def_rw("flush_threads", &comm::Tuning::flush_threads)
      .def_rw("flush_piece_bytes", &comm::Tuning::flush_piece_bytes)
      .def("check", [](const comm::Tuning& self) {
        RaiseIfError(comm::CheckTuning(self));
      });

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
              Error(Code::kFailedPrecondition, "jax_cxl is not running"));
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
  m.def(
      "interpose",
      [](const nb::capsule& make) {
        TheInterposer() = *static_cast<const pool::MakeInterposer*>(
            make.data("jax_cxl.MakeInterposer"));
      },
      "For tests: sets the interposer of the pools that this process opens "
      "from "
      "now on (cc/pool/coherence/interposer.h).",
      "make_interposer"_a);
  m.def("sweep_leftovers", &pool::SweepLeftovers,
        "Removes the pools that dead jobs of this user have left in /dev/shm. "
        "Returns their paths.");
  m.attr("AUTOMATIC_RANK_BYTES") = pool::kAutomaticRankBytes;
  m.def("automatic_path_bytes", &pool::AutomaticPathBytes,
        "Returns the size of a pool's path if the user gives none "
        "(cc/pool/layout/geometry.h).",
        "world_size"_a, "num_paths"_a, "devices_per_path"_a, "rank_bytes"_a);
  m.def("registrations", &Registrations,
        "Custom-call targets: name -> stage -> capsule.");
  m.def(
      "type_registrations", [] { return CallSiteType("jax_cxl_call_site"); },
      "FFI types: name -> type_id and type_info capsules.");
  m.attr("POOL_MAGIC") = nb::bytes(pool::kMagic, sizeof(pool::kMagic));
  BindEnumerations(m);
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
  BindPersistentMemory(m, &MakeSpec);
  BindRegroup(m);
}

}  // namespace jax_cxl
