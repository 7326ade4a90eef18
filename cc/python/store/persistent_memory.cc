#include "cc/store/memory/persistent_memory.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "cc/pool/coherence/coherence.h"
#include "cc/python/job/pool.h"
#include "cc/python/shared/bindings.h"
#include "cc/python/shared/errors.h"
#include "cc/store/memory/sessions.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace jax_cxl {

using pool::PersistentMemory;
using pool::Sessions;

void BindPersistentMemory(nb::module_& m) {
  nb::class_<PersistentMemory>(m, "PersistentMemory",
                               "Memory that outlives the jobs that use it "
                               "(cc/store/memory/persistent_memory.h).")
      .def_static(
          "open",
          [](const nb::dict& place, const std::string& mode,
             uint64_t least_bytes, double dead_after) {
            pool::PoolSpec spec = SpecOf(place);
            spec.dead_after_s = dead_after;
            const pool::OpenMode how =
                mode == "format"     ? pool::OpenMode::kFormat
                : mode == "repair"   ? pool::OpenMode::kRepair
                : mode == "existing" ? pool::OpenMode::kExisting
                                     : pool::OpenMode::kNormal;
            nb::gil_scoped_release release;
            return PersistentMemory::Open(spec, how, least_bytes);
          },
          "place"_a, nb::kw_only(), "mode"_a, "least_bytes"_a, "dead_after"_a)
      .def_prop_ro("num_devices", &PersistentMemory::num_devices)
      .def_prop_ro("device_bytes", &PersistentMemory::device_bytes)
      .def("path", &PersistentMemory::path, "device"_a)
      .def("check_intact", &PersistentMemory::CheckIntact, "device"_a)
      .def("check_files", &PersistentMemory::CheckFiles)
      .def_prop_ro("base",
                   [](const PersistentMemory& self) {
                     return reinterpret_cast<uintptr_t>(self.base());
                   })
      .def_prop_ro("total_bytes", &PersistentMemory::total_bytes)
      .def_prop_ro("coherence",
                   [](const PersistentMemory& self) {
                     return CoherenceModeName(self.coherence().mode());
                   })
      .def(
          "address",
          [](const PersistentMemory& self, int device, uint64_t offset) {
            return reinterpret_cast<uintptr_t>(self.At(device, offset, 0));
          },
          "Returns 0 if the offset is outside the device.", "device"_a,
          "offset"_a)
      .def(
          "write",
          [](const PersistentMemory& self, int device, uint64_t offset,
             const ConstBytes& data) {
            return self.Write(
                device, offset,
                std::as_bytes(std::span(data.data(), data.size())));
          },
          "device"_a, "offset"_a, "data"_a, Unlocked())
      .def(
          "read",
          [](const PersistentMemory& self, int device, uint64_t offset,
             const Bytes& out) {
            return self.Read(
                device, offset,
                std::as_writable_bytes(std::span(out.data(), out.size())));
          },
          "device"_a, "offset"_a, "out"_a, Unlocked())
      .def("publish_device_writes", &PersistentMemory::PublishDeviceWrites,
           "device"_a, "offset"_a, "bytes"_a, Unlocked())
      .def("store_word", &PersistentMemory::StoreWord, "device"_a, "offset"_a,
           "value"_a)
      .def("load_word", &PersistentMemory::LoadWord, "device"_a, "offset"_a)
      .def(
          "array",
          [](const nb::object& self, int device, uint64_t offset,
             const std::vector<size_t>& shape, int code, int bits,
             std::optional<int> gpu, const nb::object& owner) {
            uint64_t bytes = bits / 8;
            for (size_t n : shape) bytes *= n;
            auto& memory = nb::cast<PersistentMemory&>(self);
            std::byte* data = memory.At(device, offset, bytes);
            if (data == nullptr)
              throw nb::value_error("the array leaves the memory");
            const nb::dlpack::dtype dtype = {static_cast<uint8_t>(code),
                                             static_cast<uint8_t>(bits), 1};
            return nb::ndarray<nb::ro>(
                data, shape.size(), shape.data(), owner, nullptr, dtype,
                gpu ? nb::device::cuda_host::value : nb::device::cpu::value,
                gpu.value_or(0));
          },
          "Returns an array over the memory, as an object with __dlpack__. It "
          "keeps `owner` alive. `code` and `bits` are DLPack's. `gpu` is the "
          "ordinal of a GPU for which the memory is registered, or None.",
          "device"_a, "offset"_a, "shape"_a, "code"_a, "bits"_a, "gpu"_a.none(),
          "owner"_a);
  nb::class_<Sessions::Lease>(m, "Lease", "A lease of a session.");
  nb::class_<Sessions>(m, "Sessions",
                       "The processes that use persistent memory "
                       "(cc/store/memory/sessions.h).")
      .def(nb::init<const PersistentMemory&, std::vector<int>, uint64_t>(),
           "memory"_a, "devices"_a, "offset"_a, nb::keep_alive<1, 2>())
      .def(
          "enter",
          [](Sessions& self) -> Result<std::pair<int, uint64_t>> {
            CXL_ASSIGN_OR_RETURN(const Sessions::Own own, self.Enter());
            return std::pair(own.slot, own.identity);
          },
          Unlocked())
      .def("add_lease", &Sessions::AddLease, "what"_a, Unlocked())
      .def("remove_lease", &Sessions::RemoveLease, "lease"_a)
      .def("holds", &Sessions::Holds, "lease"_a)
      .def("holders_of", &Sessions::HoldersOf, "what"_a, Unlocked())
      .def("living", &Sessions::Living, "slot"_a, "identity"_a)
      .def("lock", &Sessions::Lock, "timeout_s"_a, Unlocked())
      .def("unlock", &Sessions::Unlock)
      .def("check_locked", &Sessions::CheckLocked)
      .def("damaged", &Sessions::Damaged, Unlocked());
}

}  // namespace jax_cxl
