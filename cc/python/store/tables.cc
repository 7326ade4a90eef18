#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <utility>

#include "cc/python/shared/caches.h"
#include "cc/python/shared/errors.h"
#include "cc/python/store/bindings.h"
#include "cc/store/memory/persistent_memory.h"
#include "cc/store/memory/registry.h"
#include "cc/store/table/cache.h"
#include "cc/store/table/column.h"
#include "cc/store/table/write.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace jax_cxl {
namespace {

using pool::PersistentMemory;
using table::Column;
using Rows =
    nb::ndarray<const int64_t, nb::shape<-1>, nb::c_contig, nb::device::cpu>;

// A column of a table. Programs may use the column while this object lives.
class TableColumn {
 public:
  TableColumn(const PersistentMemory& memory, int64_t table, int32_t number,
              uintptr_t address, uint64_t rows, uint64_t row_bytes,
              uintptr_t words, uint64_t rows_of_part, double timeout_s)
      : name_(table, number), column_(std::make_shared<Column>()) {
    column_->data = reinterpret_cast<const std::byte*>(address);
    column_->memory = &memory;
    column_->rows = rows;
    column_->row_bytes = row_bytes;
    column_->parts = reinterpret_cast<const table::PartWords*>(words);
    column_->rows_of_part = rows_of_part;
    column_->coherence = memory.coherence();
    column_->timeout_s = timeout_s;
    column_->taken = table::RowsTaken(table);
    pool::Registry<Column>::Get().Add(name_, column_);
  }
  ~TableColumn() {
    nb::gil_scoped_release release;
    pool::Registry<Column>::Get().Remove(name_, column_);
  }
  TableColumn(const TableColumn&) = delete;
  TableColumn& operator=(const TableColumn&) = delete;

  Column* get() const { return column_.get(); }

  void MakeCache(uint64_t rows) {
    auto cache = std::make_unique<table::HostCache>(rows, column_->row_bytes);
    std::lock_guard lock(column_->in_use);
    column_->caches[0] = std::move(cache);
  }

 private:
  const pool::Registry<Column>::Name name_;
  std::shared_ptr<Column> column_;
};

std::span<const int64_t> SpanOf(const Rows& rows) {
  return {rows.data(), rows.size()};
}

}  // namespace

void BindTables(nb::module_& m) {
  nb::class_<TableColumn>(
      m, "TableColumn",
      "Rows in persistent memory that programs take (cc/store/table/column.h).")
      .def(nb::init<const PersistentMemory&, int64_t, int32_t, uintptr_t,
                    uint64_t, uint64_t, uintptr_t, uint64_t, double>(),
           "memory"_a, nb::kw_only(), "table"_a, "number"_a, "address"_a,
           "rows"_a, "row_bytes"_a, "words"_a, "rows_of_part"_a, "timeout"_a,
           nb::keep_alive<1, 2>(),
           "`address` is in the memory. `words` is the address of the words of "
           "a trained table, 0 if the rows never change.")
      .def(
          "write",
          [](const TableColumn& self, const Rows& rows,
             const ConstBytes& data) {
            return table::WriteRows(
                *self.get(), SpanOf(rows),
                std::as_bytes(std::span(data.data(), data.size())));
          },
          "rows"_a, "data"_a, Unlocked())
      .def(
          "read",
          [](const TableColumn& self, const Rows& rows, const Bytes& out) {
            return table::ReadRows(
                *self.get(), SpanOf(rows),
                std::as_writable_bytes(std::span(out.data(), out.size())));
          },
          "rows"_a, "out"_a, Unlocked())
      .def("make_cache", &TableColumn::MakeCache, "rows"_a, Unlocked(),
           "Makes a cache, which is empty. Call it once.")
      .def("refresh_cache",
           [](const TableColumn& self) { RefreshCaches(*self.get()); })
      .def("cache_counts",
           [](const TableColumn& self) { return CacheCounts(*self.get()); })
      .def_prop_ro(
          "taken",
          [](const TableColumn& self) { return self.get()->taken->load(); })
      .def_prop_ro("taken_address", [](const TableColumn& self) {
        return reinterpret_cast<uintptr_t>(self.get()->taken);
      });
}

}  // namespace jax_cxl
