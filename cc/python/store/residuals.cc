#include <cstdint>
#include <memory>

#include "cc/python/store/bindings.h"
#include "cc/store/memory/persistent_memory.h"
#include "cc/store/memory/registry.h"
#include "cc/store/ring/memory_ring.h"
#include "cc/store/ring/ring.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace jax_cxl {
namespace {

using pool::PersistentMemory;
using tier::MemoryRing;

// A ring of residuals in a store. Programs may use the ring as long as this
// object lives.
class ResidualRing {
 public:
  ResidualRing(const PersistentMemory& memory, uint32_t ring, int32_t device,
               uint64_t offset, uint64_t rows)
      : name_(ring, device),
        ring_(
            std::make_shared<MemoryRing>(ring, device, memory, offset, rows)) {
    pool::Registry<MemoryRing>::Get().Add(name_, ring_);
  }
  ~ResidualRing() {
    nb::gil_scoped_release release;
    pool::Registry<MemoryRing>::Get().Remove(name_, ring_);
  }
  ResidualRing(const ResidualRing&) = delete;
  ResidualRing& operator=(const ResidualRing&) = delete;

 private:
  const pool::Registry<MemoryRing>::Name name_;
  const std::shared_ptr<MemoryRing> ring_;
};

}  // namespace

void BindResiduals(nb::module_& m) {
  m.attr("RESIDUAL_ALIGNMENT") = tier::Ring::kAlignment;
  nb::class_<ResidualRing>(
      m, "ResidualRing",
      "The memory of one device's residuals in a store (cc/store/ring/ring.h).")
      .def(nb::init<const PersistentMemory&, uint32_t, int32_t, uint64_t,
                    uint64_t>(),
           "memory"_a, nb::kw_only(), "ring"_a, "device"_a, "offset"_a,
           "rows"_a, nb::keep_alive<1, 2>(),
           "`device` is an ordinal of XLA. The ring has `rows` blocks of each "
           "device of the memory, from `offset` on.");
}

}  // namespace jax_cxl
