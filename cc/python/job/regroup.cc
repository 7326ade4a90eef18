#include "cc/python/job/regroup.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cc/comm/health/peers.h"
#include "cc/comm/health/regroup.h"
#include "cc/comm/runtime.h"
#include "cc/python/job/runtime.h"
#include "cc/python/shared/errors.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace jax_cxl {
void BindRegroup(nb::module_& m) {
  m.def(
      "rank_lost",
      [](int rank) { return !RunningRuntime()->peers()->Alive(rank).ok(); },
      "Returns True if a rank's process is lost.", "rank"_a);
  m.def(
      "rank_left",
      [](int rank) { return !RunningRuntime()->peers()->Left(rank).ok(); },
      "Returns True if a rank has left: it starts no more calls.", "rank"_a);
  m.def(
      "rank_name",
      [](int rank) { return RunningRuntime()->peers()->Name(rank); },
      "Returns a text like 'rank 3 (pid 4711 on host a)'.", "rank"_a);
  m.def(
      "join_attempt",
      [](int rank, uint64_t attempt) {
        comm::JoinAttempt(RunningRuntime()->pool(rank), rank, attempt);
      },
      "rank"_a, "attempt"_a);
  m.def(
      "joined_attempt",
      [](int rank, uint64_t attempt) {
        return comm::JoinedAttempt(*RunningRuntime()->pool(), rank, attempt);
      },
      "rank"_a, "attempt"_a);
  m.def(
      "decide_attempt",
      [](int rank, uint64_t attempt, std::vector<int> members,
         std::string place) {
        RaiseIfError(
            comm::DecideAttempt(RunningRuntime()->pool(rank), rank, attempt,
                                {std::move(members), std::move(place)}));
      },
      "rank"_a, "attempt"_a, "members"_a, "place"_a);
  m.def(
      "decided_attempt",
      [](int rank, uint64_t attempt) -> nb::object {
        std::optional<comm::Decision> decision =
            comm::DecidedAttempt(*RunningRuntime()->pool(), rank, attempt);
        if (!decision) return nb::none();
        return nb::make_tuple(decision->members, decision->place);
      },
      "Returns the members and the place that a rank has decided, or None.",
      "rank"_a, "attempt"_a);
}

}  // namespace jax_cxl
