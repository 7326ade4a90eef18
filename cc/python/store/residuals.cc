#include <cstdint>
#include <memory>

#include "cc/python/shared/bindings.h"
#include "cc/python/shared/registered.h"
#include "cc/store/memory/persistent_memory.h"
#include "cc/store/ring/ring.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace jax_cxl {
namespace {

using pool::PersistentMemory;
using tier::MemoryRing;

using ResidualRing = Registered<MemoryRing>;

}  // namespace

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
