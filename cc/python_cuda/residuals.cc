#include <cuda_runtime_api.h>
#include <nanobind/stl/vector.h>

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "cc/base/cuda/current_device.h"
#include "cc/python/shared/bindings.h"
#include "cc/python/shared/errors.h"
#include "cc/python/shared/registered.h"
#include "cc/store/cuda/device_ring.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace jax_cxl {
namespace {

using GpuResidualRing = Registered<comm::DeviceRing>;

}  // namespace

void BindResiduals(nb::module_& m) {
  nb::class_<GpuResidualRing>(m, "ResidualRing",
                              "The memory of a GPU's residuals in a store "
                              "(cc/store/cuda/device_ring.h).")
      .def(
          "__init__",
          [](GpuResidualRing* self, uint32_t ring, int device,
             const std::vector<uintptr_t>& addresses, uint64_t rows) {
            std::vector<std::byte*> parts;
            for (uintptr_t address : addresses)
              parts.push_back(reinterpret_cast<std::byte*>(address));
            new (self)
                GpuResidualRing({ring, device},
                                ValueOrRaise(comm::DeviceRing::Create(
                                    ring, device, std::move(parts), rows)),
                                [device] {
                                  const cuda::CurrentDevice current(device);
                                  cudaDeviceSynchronize();
                                });
          },
          nb::kw_only(), "ring"_a, "device"_a, "addresses"_a, "rows"_a,
          "`device` is a local ordinal. The ring has `rows` blocks in "
          "registered memory from each address on.");
}

}  // namespace jax_cxl
