#include <cuda_runtime_api.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "cc/base/cuda/cuda_status.h"
#include "cc/base/cuda/current_device.h"
#include "cc/python/shared/bindings.h"
#include "cc/python/shared/errors.h"
#include "cc/python/shared/registered.h"
#include "cc/store/cuda/device_cache.h"
#include "cc/store/table/column.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace jax_cxl {
namespace {

using table::Column;

// A class of its own, because nanobind tells types apart by their names, across
// all modules, and jax_cxl._core has bound the base.
struct GpuTableColumn : Registered<Column> {
  using Registered::Registered;
};

std::shared_ptr<Column> ColumnOnGpus(const table::ColumnPlace& on_host,
                                     uint64_t cache_rows,
                                     const std::vector<int>& devices) {
  auto column = std::make_shared<Column>(on_host);
  for (int device : devices)
    if (cache_rows > 0)
      column->caches[device] = ValueOrRaise(
          table::DeviceCache::Make(device, cache_rows, column->row_bytes));
  const cuda::CurrentDevice current(devices.front());
  void* stalled = nullptr;
  RaiseIfError(cuda::CudaStatus(
      cudaHostAlloc(&stalled, sizeof(uint32_t),
                    cudaHostAllocPortable | cudaHostAllocMapped),
      "allocating 4 bytes of pinned host memory for a table"));
  column->stalled = static_cast<uint32_t*>(stalled);
  *column->stalled = 0;
  return column;
}

// Waits until no kernel takes rows of the column. Afterwards the memory of the
// rows may be unmapped.
void AwaitKernels(uint32_t* stalled, const std::vector<int>& devices) {
  for (int device : devices) {
    const cuda::CurrentDevice current(device);
    cudaDeviceSynchronize();
  }
  cudaFreeHost(stalled);
}

void RefreshCaches(const GpuTableColumn& column) {
  for (const auto& [device, cache] : column->caches)
    RaiseIfError([&] {
      nb::gil_scoped_release release;
      return cache->Refresh(*column.get());
    }());
}

// Returns two sums over all caches of the column: how many rows were looked up,
// and how many of these rows were found.
nb::tuple CacheCounts(const GpuTableColumn& column) {
  table::DeviceCache::Counts all;
  for (const auto& [device, cache] : column->caches) {
    const table::DeviceCache::Counts counts = ValueOrRaise(cache->counts());
    all.wanted += counts.wanted;
    all.found += counts.found;
  }
  return nb::make_tuple(all.wanted, all.found);
}

}  // namespace

void BindTables(nb::module_& m) {
  nb::class_<GpuTableColumn>(
      m, "TableColumn",
      "Rows in registered memory that programs take (cc/store/table/column.h).")
      .def(
          "__init__",
          [](GpuTableColumn* self, const Registered<Column>& on_host,
             uint64_t cache_rows, const std::vector<int>& devices) {
            auto column = ColumnOnGpus(*on_host.get(), cache_rows, devices);
            uint32_t* const stalled = column->stalled;
            new (self) GpuTableColumn(on_host.name(), std::move(column),
                                      [=] { AwaitKernels(stalled, devices); });
          },
          "on_host"_a, nb::kw_only(), "cache_rows"_a, "devices"_a,
          nb::keep_alive<1, 2>(),
          "`on_host` is the column of jax_cxl._core, whose memory is "
          "registered. Without `cache_rows` there is no cache.")
      .def("refresh_cache", &RefreshCaches)
      .def("cache_counts", &CacheCounts);
}

}  // namespace jax_cxl
