#include "cc/python/job/pool.h"

#include <nanobind/stl/map.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cc/base/status.h"
#include "cc/comm/health/peers.h"
#include "cc/comm/health/regroup.h"
#include "cc/pool/layout/geometry.h"
#include "cc/pool/layout/layout.h"
#include "cc/pool/media/uri.h"
#include "cc/pool/memory_check.h"
#include "cc/python/shared/bindings.h"
#include "cc/python/shared/errors.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace jax_cxl {
namespace {

// The function that makes an interposer for each pool that this process opens.
// The interposer intercepts the operations by which the process uses the pool.
// The function is null except in tests.
pool::MakeInterposer& TheInterposer() {
  // Never destroyed: pools may still be opened while the process exits.
  static auto& make = *new pool::MakeInterposer;
  return make;
}

// Turns a function whose first argument is a Pool into a method of PyPool.
template <typename Return, typename... Args>
auto OfPool(Return (*function)(const pool::Pool&, Args...)) {
  return [function](const PyPool& self, Args... args) {
    return function(*self.get(), args...);
  };
}

}  // namespace

pool::PoolSpec SpecOf(const nb::dict& place) {
  pool::PoolSpec spec;
  spec.medium = ValueOrRaise(
      pool::ParseMedium(nb::cast<std::string_view>(place["kind"])));
  spec.paths = nb::cast<std::vector<std::string>>(place["paths"]);
  spec.bytes = nb::cast<uint64_t>(place["bytes"]);
  spec.devices_per_path = nb::cast<int>(place["devices_per_path"]);
  spec.offset = nb::cast<uint64_t>(place["offset"]);
  spec.coherence = ValueOrRaise(
      pool::ParseCoherenceMode(nb::cast<std::string>(place["coherence"])));
  spec.make_interposer = TheInterposer();
  return spec;
}

PyPool::PyPool(std::unique_ptr<pool::Pool> pool) {
  hosts_.emplace_back().pool = std::move(pool);
}

pool::Pool* PyPool::get() const {
  if (hosts_.empty())
    RaiseIfError(Error(Code::kFailedPrecondition,
                       "the pool already belongs to the runtime; please report "
                       "this to jax_cxl"));
  return hosts_[0].pool.get();
}

void PyPool::Register(int rank, int process_index, int device_id) {
  const pool::Pool* first = get();
  // An interposer emulates one host. If there is one, each rank gets a pool
  // with an interposer of its own, so that each rank seems to run on its own
  // host.
  if (first->spec().make_interposer && !hosts_.back().ranks.empty())
    hosts_.emplace_back().pool = ValueOrRaise(
        pool::Pool::Attach(first->spec(), first->world_size(), first->token()));
  hosts_.back().ranks.push_back(rank);
  comm::Register(hosts_.back().pool.get(), rank, process_index, device_id);
}

std::vector<comm::Runtime::Host> PyPool::Release() {
  get();
  return std::exchange(hosts_, {});
}

void BindPool(nb::module_& m) {
  nb::class_<PyPool>(m, "Pool")
      .def_static(
          "create",
          [](const nb::dict& place, double dead_after) {
            pool::PoolSpec spec = SpecOf(place);
            spec.dead_after_s = dead_after;
            const int world_size = nb::cast<int>(place["world_size"]);
            auto pool = [&] {
              nb::gil_scoped_release release;
              return pool::Pool::Create(spec, world_size);
            }();
            return PyPool(ValueOrRaise(std::move(pool)));
          },
          "place"_a, "dead_after"_a = 5.0)
      .def_static(
          "attach",
          [](const nb::dict& place) {
            return PyPool(ValueOrRaise(pool::Pool::Attach(
                SpecOf(place), nb::cast<int>(place["world_size"]),
                nb::cast<uint64_t>(place["token"]))));
          },
          "place"_a)
      .def("register", &PyPool::Register, "rank"_a, "process_index"_a,
           "device_id"_a)
      .def("registered", OfPool(comm::Registered), "rank"_a)
      .def("boot_id", OfPool(comm::BootIdOf), "rank"_a)
      .def("measure_memory", OfPool(pool::MeasureMemory),
           "cc/pool/memory_check.h; for `python -m jax_cxl doctor`.")
      .def("check_words", OfPool(pool::CheckWords))
      .def("store_check_word", OfPool(pool::StoreCheckWord), "index"_a,
           "value"_a, "write_back"_a)
      .def("load_check_word", OfPool(pool::LoadCheckWord), "index"_a, "drop"_a)
      .def("pass_doorbell", OfPool(pool::PassDoorbell), "first"_a, "rounds"_a,
           "timeout"_a)
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

  m.def(
      "interpose",
      [](const nb::capsule& make) {
        TheInterposer() = *static_cast<const pool::MakeInterposer*>(
            make.data("jax_cxl.MakeInterposer"));
      },
      "For tests: sets the interposer of the pools that this process opens "
      "from now on (cc/pool/coherence/interposer.h).",
      "make_interposer"_a);
  m.def("sweep_leftovers", &pool::SweepLeftovers);
  m.attr("AUTOMATIC_RANK_BYTES") = pool::kAutomaticRankBytes;
  m.def(
      "parse_pool_uri",
      [](std::string_view uri) {
        const pool::PoolUri parsed = ValueOrRaise(pool::ParsePoolUri(uri));
        nb::dict fields;
        fields["kind"] =
            pool::kMediumNames[static_cast<int>(parsed.spec.medium)];
        fields["paths"] = nb::tuple(nb::cast(parsed.spec.paths));
        fields["bytes"] = parsed.spec.bytes;
        fields["devices_per_path"] = parsed.spec.devices_per_path;
        fields["offset"] = parsed.spec.offset;
        fields["coherence"] = pool::CoherenceModeName(parsed.spec.coherence);
        fields["gpu_writes_memory"] = parsed.gpu_writes_memory;
        fields["keep"] = parsed.keep;
        fields["coherence_given"] = parsed.coherence_given;
        fields["in_dev_shm"] = !parsed.spec.shared();
        fields["is_device"] = parsed.spec.on_devices();
        return fields;
      },
      "uri"_a);
  m.def("automatic_path_bytes", &pool::AutomaticPathBytes, "world_size"_a,
        "num_paths"_a, "devices_per_path"_a, "rank_bytes"_a);
  m.attr("POOL_MAGIC") = nb::bytes(pool::kMagic, sizeof(pool::kMagic));
}

}  // namespace jax_cxl
