#include "cc/python/shared/registered.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <shared_mutex>
#include <span>
#include <utility>

#include "cc/python/shared/bindings.h"
#include "cc/python/shared/errors.h"
#include "cc/store/memory/persistent_memory.h"
#include "cc/store/ring/ring.h"
#include "cc/store/table/column.h"
#include "cc/store/table/take.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace jax_cxl {
namespace {

using pool::PersistentMemory;
using table::Column;
using tier::MemoryRing;
using Rows =
    nb::ndarray<const int64_t, nb::shape<-1>, nb::c_contig, nb::device::cpu>;

using TableColumn = Registered<Column>;
using ResidualRing = Registered<MemoryRing>;

}  // namespace

void BindTables(nb::module_& m) {
  nb::class_<TableColumn>(
      m, "TableColumn",
      "Rows in persistent memory that programs take (cc/store/table/column.h).")
      .def(
          "__init__",
          [](TableColumn* self, const PersistentMemory& memory, int64_t table,
             int32_t number, uintptr_t address, uint64_t rows,
             uint64_t row_bytes, uintptr_t words, uint64_t rows_of_part,
             double timeout_s) {
            const table::ColumnPlace place = {
                .data = reinterpret_cast<const std::byte*>(address),
                .memory = &memory,
                .rows = rows,
                .row_bytes = row_bytes,
                .parts = reinterpret_cast<const table::PartWords*>(words),
                .rows_of_part = rows_of_part,
                .coherence = memory.coherence(),
                .timeout_s = timeout_s,
                .taken = table::RowsTaken(table)};
            new (self)
                TableColumn({table, number}, std::make_shared<Column>(place));
          },
          "memory"_a, nb::kw_only(), "table"_a, "number"_a, "address"_a,
          "rows"_a, "row_bytes"_a, "words"_a, "rows_of_part"_a, "timeout"_a,
          nb::keep_alive<1, 2>(),
          "`address` is in the memory. `words` is the address of the words of "
          "a trained table, 0 if the rows never change.")
      .def(
          "write",
          [](const TableColumn& self, const Rows& rows,
             const ConstBytes& data) {
            std::shared_lock in_use(self->in_use);
            return table::WriteRows(
                *self.get(), std::span(rows.data(), rows.size()),
                std::as_bytes(std::span(data.data(), data.size())));
          },
          "rows"_a, "data"_a, Unlocked())
      .def(
          "read",
          [](const TableColumn& self, const Rows& rows, const Bytes& out) {
            const table::Request request = {
                .ids = {.data = rows.data(),
                        .count = rows.size(),
                        .wide = true},
                .mode = table::Mode::kError,
                .output = reinterpret_cast<std::byte*>(out.data())};
            std::shared_lock in_use(self->in_use);
            if (self->closed || out.size() != rows.size() * self->row_bytes)
              return table::SizeError(rows.size());
            const Status taken =
                table::TakeRows(*self.get(), request, 0, rows.size());
            return taken.ok() ? self->CheckIntact() : taken;
          },
          "rows"_a, "out"_a, Unlocked(), "`out` has room for just the rows.")
      .def_prop_ro("taken",
                   [](const TableColumn& self) { return self->taken->load(); });
}

void BindResiduals(nb::module_& m) {
  m.attr("RESIDUAL_ALIGNMENT") = tier::Ring::kAlignment;
  nb::class_<ResidualRing>(
      m, "ResidualRing",
      "The memory of one device's residuals in a store (cc/store/ring/ring.h).")
      .def(
          "__init__",
          [](ResidualRing* self, const PersistentMemory& memory, uint32_t ring,
             int32_t device, uint64_t offset, uint64_t rows) {
            new (self) ResidualRing({ring, device},
                                    std::make_shared<MemoryRing>(
                                        ring, device, memory, offset, rows));
          },
          "memory"_a, nb::kw_only(), "ring"_a, "device"_a, "offset"_a, "rows"_a,
          nb::keep_alive<1, 2>(),
          "`device` is an ordinal of XLA. The ring has `rows` blocks of each "
          "device of the memory, from `offset` on.");
}

}  // namespace jax_cxl
