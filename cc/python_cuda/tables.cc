#include "cc/python_cuda/tables.h"

#include <cuda_runtime_api.h>
#include <nanobind/stl/vector.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "cc/base/cuda/cuda_status.h"
#include "cc/base/cuda/current_device.h"
#include "cc/ffi/cuda/store/device_cache.h"
#include "cc/python/shared/caches.h"
#include "cc/python/shared/errors.h"
#include "cc/store/memory/registry.h"
#include "cc/store/table/column.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace jax_cxl {
namespace {

using table::Column;

// A column of a table. Programs on GPUs may use the column while this object
// lives. The C++ class is not named TableColumn, because jax_cxl._core has a
// class of that name, and nanobind tells types apart by their names, across all
// modules.
class GpuTableColumn {
 public:
  GpuTableColumn(uintptr_t memory, int64_t table, int32_t number,
                 uintptr_t address, uint64_t rows, uint64_t row_bytes,
                 uintptr_t words, uint64_t rows_of_part, double timeout_s,
                 uintptr_t taken, uint64_t cache_rows, std::vector<int> devices)
      : name_(table, number),
        column_(std::make_shared<Column>()),
        devices_(std::move(devices)) {
    column_->data = reinterpret_cast<const std::byte*>(address);
    column_->memory = reinterpret_cast<const pool::PersistentMemory*>(memory);
    column_->rows = rows;
    column_->row_bytes = row_bytes;
    column_->parts = reinterpret_cast<const table::PartWords*>(words);
    column_->rows_of_part = rows_of_part;
    column_->timeout_s = timeout_s;
    for (int device : devices_)
      if (cache_rows > 0)
        column_->caches[device] =
            ValueOrRaise(ffi::DeviceCache::Make(device, cache_rows, row_bytes));
    const cuda::CurrentDevice current(devices_.front());
    void* stalled = nullptr;
    RaiseIfError(cuda::CudaStatus(
        cudaHostAlloc(&stalled, sizeof(uint32_t),
                      cudaHostAllocPortable | cudaHostAllocMapped),
        "allocating 4 bytes of pinned host memory for a table"));
    column_->stalled = static_cast<uint32_t*>(stalled);
    *column_->stalled = 0;
    column_->taken = reinterpret_cast<std::atomic<uint64_t>*>(taken);
    pool::Registry<Column>::Get().Add(name_, column_);
  }
  // Waits until no kernel takes rows of the column. Afterwards the memory of
  // the rows may be unmapped.
  ~GpuTableColumn() {
    nb::gil_scoped_release release;
    pool::Registry<Column>::Get().Remove(name_, column_);
    for (int device : devices_) {
      const cuda::CurrentDevice current(device);
      cudaDeviceSynchronize();
    }
    cudaFreeHost(column_->stalled);
  }
  GpuTableColumn(const GpuTableColumn&) = delete;
  GpuTableColumn& operator=(const GpuTableColumn&) = delete;

  const Column& column() const { return *column_; }

 private:
  const pool::Registry<Column>::Name name_;
  std::shared_ptr<Column> column_;
  const std::vector<int> devices_;
};

}  // namespace

void BindTables(nb::module_& m) {
  nb::class_<GpuTableColumn>(
      m, "TableColumn",
      "Rows in registered memory that programs take (cc/store/table/column.h).")
      .def(nb::init<uintptr_t, int64_t, int32_t, uintptr_t, uint64_t, uint64_t,
                    uintptr_t, uint64_t, double, uintptr_t, uint64_t,
                    std::vector<int>>(),
           nb::kw_only(), "memory"_a, "table"_a, "number"_a, "address"_a,
           "rows"_a, "row_bytes"_a, "words"_a, "rows_of_part"_a, "timeout"_a,
           "taken"_a, "cache_rows"_a, "devices"_a,
           "`memory` is the address of the PersistentMemory, which the caller "
           "keeps. `taken` is the address of the word that counts taken rows. "
           "Without `cache_rows` there is no cache.")
      .def("refresh_cache",
           [](const GpuTableColumn& self) { RefreshCaches(self.column()); })
      .def("cache_counts", [](const GpuTableColumn& self) {
        return CacheCounts(self.column());
      });
}

}  // namespace jax_cxl
