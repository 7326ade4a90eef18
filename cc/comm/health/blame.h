#ifndef JAX_CXL_COMM_HEALTH_BLAME_H_
#define JAX_CXL_COMM_HEALTH_BLAME_H_

#include <string>

#include "cc/comm/call/call.h"
#include "cc/comm/health/peers.h"
#include "cc/pool/pool.h"

namespace jax_cxl::comm {

// The rank that a wait comes down to.
struct Culprit {
  int rank = -1;    // in the world
  std::string why;  // "which has not started it"
};

// Finds whom `call`, of this rank and not finished, really waits for. It waits
// for `rank`, which may be waiting for another itself, and so on: the ranks'
// recorders tell. `started`: all ranks are in the call. Takes its time.
Culprit FindCulprit(const pool::Pool& pool, const Peers& peers,
                    const Group& group, const Call& call, bool started,
                    int rank);

}  // namespace jax_cxl::comm

#endif  // JAX_CXL_COMM_HEALTH_BLAME_H_
