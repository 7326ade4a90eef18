#include "cc/python_cuda/residuals.h"

#include <cuda_runtime_api.h>
#include <nanobind/stl/vector.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "cc/base/cuda/current_device.h"
#include "cc/python/shared/errors.h"
#include "cc/store/cuda/device_ring.h"
#include "cc/store/memory/registry.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace jax_cxl {
namespace {

using Rings = pool::Registry<comm::DeviceRing>;

// A ring of residuals in a store. Programs on a GPU may use the ring while this
// object lives. The C++ class is not named ResidualRing, because jax_cxl._core
// has a class of that name, and nanobind tells types apart by their names,
// across all modules.
class GpuResidualRing {
 public:
  GpuResidualRing(uint32_t ring, int device,
                  const std::vector<uintptr_t>& addresses, uint64_t rows)
      : name_(ring, device) {
    std::vector<std::byte*> parts;
    for (uintptr_t address : addresses)
      parts.push_back(reinterpret_cast<std::byte*>(address));
    ring_ = ValueOrRaise(
        comm::DeviceRing::Create(ring, device, std::move(parts), rows));
    Rings::Get().Add(name_, ring_);
  }
  ~GpuResidualRing() {
    nb::gil_scoped_release release;
    Rings::Get().Remove(name_, ring_);
    const cuda::CurrentDevice current(name_.second);
    cudaDeviceSynchronize();
  }
  GpuResidualRing(const GpuResidualRing&) = delete;
  GpuResidualRing& operator=(const GpuResidualRing&) = delete;

 private:
  const Rings::Name name_;
  std::shared_ptr<comm::DeviceRing> ring_;
};

}  // namespace

void BindResiduals(nb::module_& m) {
  nb::class_<GpuResidualRing>(m, "ResidualRing",
                              "The memory of a GPU's residuals in a store "
                              "(cc/store/cuda/device_ring.h).")
      .def(nb::init<uint32_t, int, const std::vector<uintptr_t>&, uint64_t>(),
           nb::kw_only(), "ring"_a, "device"_a, "addresses"_a, "rows"_a,
           "`device` is a local ordinal. The ring has `rows` blocks in "
           "registered memory from each address on.");
}

}  // namespace jax_cxl
