#include "cc/python/store/sessions.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cc/pool/persistent/persistent_memory.h"
#include "cc/pool/persistent/sessions.h"
#include "cc/python/shared/errors.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace jax_cxl {

using pool::PersistentMemory;
using pool::Sessions;

void BindSessions(nb::module_& m) {
  nb::class_<Sessions::Lease>(m, "Lease", "A lease of a session.");
  nb::class_<Sessions>(m, "Sessions",
                       "The processes that use persistent memory "
                       "(cc/pool/persistent/sessions.h).")
      .def(nb::init<const PersistentMemory&, std::vector<int>, uint64_t>(),
           "memory"_a, "devices"_a, "offset"_a, nb::keep_alive<1, 2>())
      .def("enter",
           [](Sessions& self) {
             const Sessions::Own own = ValueOrRaise([&] {
               nb::gil_scoped_release release;
               return self.Enter();
             }());
             return std::make_pair(own.slot, own.identity);
           })
      .def(
          "add_lease",
          [](Sessions& self, uint64_t what) {
            return ValueOrRaise([&] {
              nb::gil_scoped_release release;
              return self.AddLease(what);
            }());
          },
          "what"_a)
      .def("remove_lease", &Sessions::RemoveLease, "lease"_a)
      .def("holds", &Sessions::Holds, "lease"_a)
      .def(
          "holders_of",
          [](Sessions& self, uint64_t what) {
            std::vector<std::pair<std::string, uint64_t>> holders;
            for (Sessions::Holder& holder : ValueOrRaise([&] {
                   nb::gil_scoped_release release;
                   return self.HoldersOf(what);
                 }()))
              holders.emplace_back(std::move(holder.who), holder.count);
            return holders;
          },
          "what"_a, "Returns who leases `what`, and the count of each.")
      .def(
          "count",
          [](Sessions& self, uint64_t what, uintptr_t address) {
            self.Count(what, reinterpret_cast<std::atomic<uint64_t>*>(address));
          },
          "what"_a, "address"_a)
      .def(
          "living",
          [](Sessions& self, int slot,
             uint64_t identity) -> std::optional<std::string> {
            const auto holder = ValueOrRaise(self.Living(slot, identity));
            if (!holder) return std::nullopt;
            return holder->who;
          },
          "slot"_a, "identity"_a)
      .def(
          "lock",
          [](Sessions& self, double timeout_s) {
            Status status;
            {
              nb::gil_scoped_release release;
              status = self.Lock(timeout_s);
            }
            RaiseIfError(status);
          },
          "timeout_s"_a)
      .def("unlock", &Sessions::Unlock)
      .def("check_locked",
           [](Sessions& self) { RaiseIfError(self.CheckLocked()); });
}

}  // namespace jax_cxl
