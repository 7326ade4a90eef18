#include "cc/store/memory/sessions.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "cc/python/shared/bindings.h"
#include "cc/python/shared/errors.h"
#include "cc/store/memory/persistent_memory.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace jax_cxl {

using pool::PersistentMemory;
using pool::Sessions;

void BindSessions(nb::module_& m) {
  nb::class_<Sessions::Lease>(m, "Lease", "A lease of a session.");
  nb::class_<Sessions>(m, "Sessions",
                       "The processes that use persistent memory "
                       "(cc/store/memory/sessions.h).")
      .def(nb::init<const PersistentMemory&, std::vector<int>, uint64_t>(),
           "memory"_a, "devices"_a, "offset"_a, nb::keep_alive<1, 2>())
      .def(
          "enter",
          [](Sessions& self) -> Result<std::pair<int, uint64_t>> {
            CXL_ASSIGN_OR_RETURN(const Sessions::Own own, self.Enter());
            return std::pair(own.slot, own.identity);
          },
          Unlocked())
      .def("add_lease", &Sessions::AddLease, "what"_a, Unlocked())
      .def("remove_lease", &Sessions::RemoveLease, "lease"_a)
      .def("holds", &Sessions::Holds, "lease"_a)
      .def("holders_of", &Sessions::HoldersOf, "what"_a, Unlocked())
      .def("living", &Sessions::Living, "slot"_a, "identity"_a)
      .def("lock", &Sessions::Lock, "timeout_s"_a, Unlocked())
      .def("unlock", &Sessions::Unlock)
      .def("check_locked", &Sessions::CheckLocked)
      .def("damaged", &Sessions::Damaged, Unlocked());
}

}  // namespace jax_cxl
