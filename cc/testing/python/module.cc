// The Python module _testing, which only test builds have. It makes
// interposers, which intercept a process's operations on its pools.

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <cstdint>
#include <string>

#include "cc/pool/coherence/interposer.h"
#include "cc/testing/incoherent/incoherent_cache.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace jax_cxl {

NB_MODULE(_testing, m) {
  m.doc() = "What tests put between a process and its pools.";
  m.def(
      "incoherent_hosts",
      [](uint64_t seed, const std::string& leave_out) {
        return nb::capsule(
            new pool::MakeInterposer(pool::IncoherentHosts(seed, leave_out)),
            "jax_cxl.MakeInterposer", [](void* made) noexcept {
              delete static_cast<pool::MakeInterposer*>(made);
            });
      },
      "Emulated caches that are not coherent, for jax_cxl._core.interpose "
      "(cc/testing/incoherent/incoherent_cache.h).",
      "seed"_a, "leave_out"_a = "");
}

}  // namespace jax_cxl
