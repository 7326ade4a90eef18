// The Python module jax_cxl._cuda: collectives between GPUs. It uses the
// runtime of jax_cxl._core, which must be from the same build and is passed to
// it.

#include <nanobind/nanobind.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "cc/base/status.h"
#include "cc/comm/runtime.h"
#include "cc/ffi/call/program_sites.h"
#include "cc/ffi/errors/errors.h"
#include "cc/gpu/cuda/device_runtime.h"
#include "cc/python/shared/bindings.h"
#include "cc/python/shared/errors.h"
#include "cc/python/shared/registrations.h"
#include "cc/store/cuda/device_copies.h"
#include "xla/ffi/api/ffi.h"

namespace nb = nanobind;
using namespace nb::literals;

// The handlers, which cc/ffi/cuda defines.
XLA_FFI_DECLARE_HANDLER_SYMBOL(jax_cxl_cuda_instantiate);
XLA_FFI_DECLARE_HANDLER_SYMBOL(jax_cxl_cuda_collective);
XLA_FFI_DECLARE_HANDLER_SYMBOL(jax_cxl_cuda_rows);
XLA_FFI_DECLARE_HANDLER_SYMBOL(jax_cxl_cuda_barrier);
XLA_FFI_DECLARE_HANDLER_SYMBOL(jax_cxl_cuda_start);
XLA_FFI_DECLARE_HANDLER_SYMBOL(jax_cxl_cuda_start_rows);
XLA_FFI_DECLARE_HANDLER_SYMBOL(jax_cxl_cuda_done);
XLA_FFI_DECLARE_HANDLER_SYMBOL(jax_cxl_cuda_tie);
XLA_FFI_DECLARE_HANDLER_SYMBOL(jax_cxl_cuda_check_slices);
XLA_FFI_DECLARE_HANDLER_SYMBOL(jax_cxl_cuda_table);
XLA_FFI_DECLARE_HANDLER_SYMBOL(jax_cxl_cuda_start_table);
XLA_FFI_DECLARE_HANDLER_SYMBOL(jax_cxl_cuda_table_done);
XLA_FFI_DECLARE_HANDLER_SYMBOL(jax_cxl_cuda_put_residual);
XLA_FFI_DECLARE_HANDLER_SYMBOL(jax_cxl_cuda_get_residual);

namespace jax_cxl {
namespace {

std::shared_ptr<comm::Runtime> RuntimeOf(const nb::capsule& capsule) {
  return *static_cast<std::shared_ptr<comm::Runtime>*>(
      capsule.data("jax_cxl.Runtime"));
}

nb::dict Registrations() {
  nb::dict targets;
  AddTargets(targets, &jax_cxl_cuda_instantiate,
             {{"jax_cxl_collective", &jax_cxl_cuda_collective},
              {"jax_cxl_rows", &jax_cxl_cuda_rows},
              {"jax_cxl_barrier", &jax_cxl_cuda_barrier},
              {"jax_cxl_start", &jax_cxl_cuda_start},
              {"jax_cxl_start_rows", &jax_cxl_cuda_start_rows}});
  AddTargets(targets, nullptr,
             {{"jax_cxl_done", &jax_cxl_cuda_done},
              {"jax_cxl_tie", &jax_cxl_cuda_tie},
              {"jax_cxl_check_slices", &jax_cxl_cuda_check_slices},
              {"jax_cxl_table", &jax_cxl_cuda_table},
              {"jax_cxl_start_table", &jax_cxl_cuda_start_table},
              {"jax_cxl_table_done", &jax_cxl_cuda_table_done},
              {"jax_cxl_put_residual", &jax_cxl_cuda_put_residual},
              {"jax_cxl_get_residual", &jax_cxl_cuda_get_residual}});
  return targets;
}

}  // namespace

NB_MODULE(_cuda, m) {
  m.doc() = "CUDA handlers of jax_cxl.";

  m.def(
      "start",
      [](const nb::capsule& runtime, const std::vector<int>& devices,
         uint64_t slot_bytes, int num_slots, double warn_after, double timeout,
         int flush_threads, uint64_t flush_piece_bytes,
         bool gpu_writes_memory) {
        comm::DeviceOptions options;
        options.slot_bytes = slot_bytes;
        options.num_slots = num_slots;
        options.warn_after_s = warn_after;
        options.timeout_s = timeout;
        options.flush_threads = flush_threads;
        options.flush_piece_bytes = flush_piece_bytes;
        options.gpu_writes_memory = gpu_writes_memory;
        return comm::DeviceRuntime::Start(RuntimeOf(runtime), devices, options);
      },
      "runtime"_a, "devices"_a, nb::kw_only(), "slot_bytes"_a, "num_slots"_a,
      "warn_after"_a, "timeout"_a, "flush_threads"_a, "flush_piece_bytes"_a,
      "gpu_writes_memory"_a);
  m.def(
      "use_core",
      [](ffi::ProgramSites& programs, ffi::Failures& failures) {
        ffi::ProgramSites::Use(&programs);
        ffi::Failures::Use(&failures);
      },
      "Shares the objects PROGRAMS and FAILURES of jax_cxl._core.",
      "programs"_a, "failures"_a);
  m.def("stop", &comm::DeviceRuntime::Stop, Unlocked());
  m.def(
      "failure",
      []() -> nb::object {
        auto runtime = comm::DeviceRuntime::Current();
        const Status failure =
            runtime == nullptr ? OkStatus() : runtime->failure();
        return failure.ok() ? nb::none() : FailureTuple(failure);
      },
      "Returns code, message and details of the error that ended this "
      "process's "
      "collectives, or None.");
  m.def("stats", []() {
    auto runtime = comm::DeviceRuntime::Current();
    return StatsDict(runtime == nullptr ? comm::Stats() : runtime->stats());
  });
  nb::class_<comm::DeviceCopies>(m, "DeviceCopies",
                                 "cc/store/cuda/device_copies.h")
      .def_static(
          "create",
          [](const nb::object&, uintptr_t base, uint64_t bytes,
             const std::vector<int>& devices) {
            return comm::DeviceCopies::Create(
                reinterpret_cast<std::byte*>(base), bytes, devices);
          },
          nb::keep_alive<0, 1>(), Unlocked(), "memory"_a, "base"_a, "bytes"_a,
          "devices"_a, "`memory` keeps [base, base + bytes) mapped.")
      .def(
          "start",
          [](comm::DeviceCopies& self, int device,
             const std::vector<std::array<uintptr_t, 3>>& copies) {
            std::vector<comm::DeviceCopies::Copy> all;
            for (const auto& [from, to, bytes] : copies)
              all.push_back({reinterpret_cast<const std::byte*>(from),
                             reinterpret_cast<std::byte*>(to), bytes});
            return self.Start(device, all);
          },
          Unlocked(), "device"_a, "copies"_a)
      .def("wait", &comm::DeviceCopies::Wait, Unlocked(), "number"_a)
      .def(
          "checksums",
          [](comm::DeviceCopies& self,
             const std::vector<std::pair<int, std::vector<uint64_t>>>& blocks,
             uint64_t bytes) {
            std::vector<comm::DeviceCopies::Blocks> of_devices;
            for (const auto& [device, addresses] : blocks)
              of_devices.push_back({device, addresses});
            return self.Checksums(of_devices, bytes);
          },
          Unlocked(),
          "Takes devices, each with the addresses of blocks in its memory. "
          "Returns the checksums of the blocks of each device.",
          "blocks"_a, "bytes"_a);

  BindTables(m);
  BindResiduals(m);

  m.def("registrations", &Registrations,
        "Custom-call targets: name -> stage -> capsule.");
  m.def(
      "type_registrations",
      [] { return CallSiteType("jax_cxl_cuda_call_site"); },
      "FFI types: name -> type_id and type_info capsules.");
}

}  // namespace jax_cxl
