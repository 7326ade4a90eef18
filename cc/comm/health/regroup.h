#ifndef JAX_CXL_COMM_HEALTH_REGROUP_H_
#define JAX_CXL_COMM_HEALTH_REGROUP_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cc/base/status.h"
#include "cc/pool/pool.h"

namespace jax_cxl::comm {

// What the ranks that are left of a job say to each other, in its pool, to
// agree on who goes on in which other pool. jax_cxl/_runtime/regroup.py has the
// whole of it:
//
//   1. Every rank joins an attempt: 1, then 2, ...
//   2. Once all have joined that are not lost, the lowest of them decides:
//   which
//      ranks go on, and in which pool, where these then register.
//   3. Whoever sees all of them registered there goes on. A registration stays,
//      so that all see it, or none; then a member was lost, and they join the
//      next attempt.
//
// A rank decides an attempt only when all others have joined it, which they do
// when they have read what it decided before: nobody reads half of each.
// Stateless; safe to use from any thread.

struct Decision {
  std::vector<int> members;  // ranks of this pool that go on
  std::string place;         // of the new pool
};

void JoinAttempt(pool::Pool* pool, int rank, uint64_t attempt);
bool JoinedAttempt(const pool::Pool& pool, int rank, uint64_t attempt);

// Errors: kResourceExhausted if the place is too long.
Status DecideAttempt(pool::Pool* pool, int rank, uint64_t attempt,
                     const Decision& decision);
// What `rank` has decided about the attempt, if it has. The place may be any
// text; members are ranks of the pool.
std::optional<Decision> DecidedAttempt(const pool::Pool& pool, int rank,
                                       uint64_t attempt);

// Whether a rank is in the pool.
bool Registered(const pool::Pool& pool, int rank);

// The boot id of the kernel under which a rank that has registered runs.
std::string BootIdOf(const pool::Pool& pool, int rank);

}  // namespace jax_cxl::comm

#endif  // JAX_CXL_COMM_HEALTH_REGROUP_H_
