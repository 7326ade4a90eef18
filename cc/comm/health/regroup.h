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
// ranks that continue, and on the pool in which they continue. They may need
// several numbered attempts. jax_cxl/_job/regroup.py describes the protocol.
//
// A rank publishes its decision about an attempt only when all others have
// joined the attempt. They join only after they have read the rank's previous
// decision, which the new one overwrites. So no rank reads parts of two
// decisions.
//
// Stateless and thread-safe.

struct Decision {
  std::vector<int> members;  // ranks of this pool that continue
  std::string place;         // of the new pool
};

void JoinAttempt(pool::Pool* pool, int rank, uint64_t attempt);
bool JoinedAttempt(const pool::Pool& pool, int rank, uint64_t attempt);

// Publishes the decision of `rank` about the attempt. Fails with
// kResourceExhausted if the place of the new pool is too long for the message.
Status DecideAttempt(pool::Pool* pool, int rank, uint64_t attempt,
                     const Decision& decision);
// Returns the decision of `rank` about the attempt, if there is one. Its
// members are certainly ranks of the pool, but its place may be any text.
std::optional<Decision> DecidedAttempt(const pool::Pool& pool, int rank,
                                       uint64_t attempt);

bool Registered(const pool::Pool& pool, int rank);

std::string BootIdOf(const pool::Pool& pool, int rank);

}  // namespace jax_cxl::comm

#endif  // JAX_CXL_COMM_HEALTH_REGROUP_H_
