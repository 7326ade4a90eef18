#ifndef JAX_CXL_COMM_HEALTH_REGROUP_H_
#define JAX_CXL_COMM_HEALTH_REGROUP_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cc/base/status.h"
#include "cc/pool/pool.h"

namespace jax_cxl::comm {

// Messages in the old pool by which the surviving ranks of a job agree on the
// ranks that continue, and on the pool in which they continue.
// jax_cxl/_job/regroup.py describes the protocol.
//
// A rank decides an attempt only when all others have joined it. They join
// after they have read its previous decision, so no rank reads parts of two
// decisions.
//
// Stateless and thread-safe.

struct Decision {
  std::vector<int> members;  // ranks of this pool that continue
  std::string place;         // of the new pool
};

void JoinAttempt(pool::Pool* pool, int rank, uint64_t attempt);
bool JoinedAttempt(const pool::Pool& pool, int rank, uint64_t attempt);

// Fails with kResourceExhausted if the place is too long.
Status DecideAttempt(pool::Pool* pool, int rank, uint64_t attempt,
                     const Decision& decision);
// Returns the decision of `rank` about the attempt, if there is one. The place
// may be any text. The members are ranks of the pool.
std::optional<Decision> DecidedAttempt(const pool::Pool& pool, int rank,
                                       uint64_t attempt);

// Returns true if the rank has registered in the pool.
bool Registered(const pool::Pool& pool, int rank);

// Returns the boot id of the kernel under which a registered rank runs.
std::string BootIdOf(const pool::Pool& pool, int rank);

}  // namespace jax_cxl::comm

#endif  // JAX_CXL_COMM_HEALTH_REGROUP_H_
