#include "cc/python/store/persistent_memory.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "cc/pool/coherence/coherence.h"
#include "cc/pool/persistent/persistent_memory.h"
#include "cc/python/job/pool.h"
#include "cc/python/shared/errors.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace jax_cxl {
namespace {

using pool::PersistentMemory;
using Bytes =
    nb::ndarray<uint8_t, nb::shape<-1>, nb::c_contig, nb::device::cpu>;
using ConstBytes =
    nb::ndarray<const uint8_t, nb::shape<-1>, nb::c_contig, nb::device::cpu>;

// Runs `run` without Python's lock, and raises its error.
template <typename Run>
void RunUnlocked(const Run& run) {
  Status status;
  {
    nb::gil_scoped_release release;
    status = run();
  }
  RaiseIfError(status);
}

}  // namespace

void BindPersistentMemory(nb::module_& m) {
  nb::class_<PersistentMemory>(m, "PersistentMemory",
                               "Memory that outlives the jobs that use it "
                               "(cc/pool/persistent/persistent_memory.h).")
      .def_static(
          "open",
          [](const std::string& kind, std::vector<std::string> paths,
             uint64_t bytes, int devices_per_path, uint64_t offset,
             const std::string& coherence, std::string magic,
             std::vector<uint64_t> magic_offsets, const std::string& mode,
             uint64_t least_bytes) {
            const pool::PoolSpec spec =
                MakePoolSpec(kind, std::move(paths), bytes, devices_per_path,
                             offset, coherence);
            const pool::Signature signature = {std::move(magic),
                                               std::move(magic_offsets)};
            const pool::OpenMode how =
                mode == "format"     ? pool::OpenMode::kFormat
                : mode == "repair"   ? pool::OpenMode::kRepair
                : mode == "existing" ? pool::OpenMode::kExisting
                                     : pool::OpenMode::kNormal;
            nb::gil_scoped_release release;
            auto memory =
                PersistentMemory::Open(spec, signature, how, least_bytes);
            nb::gil_scoped_acquire acquire;
            return ValueOrRaise(std::move(memory));
          },
          nb::kw_only(), "kind"_a, "paths"_a, "bytes"_a, "devices_per_path"_a,
          "offset"_a, "coherence"_a, "magic"_a, "magic_offsets"_a, "mode"_a,
          "least_bytes"_a)
      .def_prop_ro("num_devices", &PersistentMemory::num_devices)
      .def_prop_ro("device_bytes", &PersistentMemory::device_bytes)
      .def("path", &PersistentMemory::path,
           "Returns the path in which a device lies.", "device"_a)
      .def(
          "check_intact",
          [](const PersistentMemory& self, int device) {
            RaiseIfError(self.CheckIntact(device));
          },
          "device"_a)
      .def("check_names", &PersistentMemory::CheckNames)
      .def_prop_ro("base",
                   [](const PersistentMemory& self) {
                     return reinterpret_cast<uintptr_t>(self.base());
                   })
      .def_prop_ro("total_bytes", &PersistentMemory::total_bytes)
      .def_prop_ro(
          "coherence",
          [](const PersistentMemory& self) {
            return std::string(CoherenceModeName(self.coherence().mode()));
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
            const std::span from(
                reinterpret_cast<const std::byte*>(data.data()), data.size());
            RunUnlocked([&] { return self.Write(device, offset, from); });
          },
          "device"_a, "offset"_a, "data"_a)
      .def(
          "read",
          [](const PersistentMemory& self, int device, uint64_t offset,
             const Bytes& out) {
            const std::span to(reinterpret_cast<std::byte*>(out.data()),
                               out.size());
            RunUnlocked([&] { return self.Read(device, offset, to); });
          },
          "device"_a, "offset"_a, "out"_a)
      .def(
          "publish_device_writes",
          [](const PersistentMemory& self, int device, uint64_t offset,
             uint64_t bytes) {
            RunUnlocked([&] {
              return self.PublishDeviceWrites(device, offset, bytes);
            });
          },
          "device"_a, "offset"_a, "bytes"_a)
      .def(
          "store_word",
          [](const PersistentMemory& self, int device, uint64_t offset,
             uint64_t value) {
            RaiseIfError(self.StoreWord(device, offset, value));
          },
          "device"_a, "offset"_a, "value"_a)
      .def(
          "load_word",
          [](const PersistentMemory& self, int device, uint64_t offset) {
            return ValueOrRaise(self.LoadWord(device, offset));
          },
          "device"_a, "offset"_a)
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
}

}  // namespace jax_cxl
