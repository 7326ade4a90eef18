#ifndef JAX_CXL_COMM_HEALTH_BLOCKING_RANK_H_
#define JAX_CXL_COMM_HEALTH_BLOCKING_RANK_H_

#include <string>

#include "cc/comm/call/call.h"
#include "cc/comm/health/peers.h"
#include "cc/pool/pool.h"

namespace jax_cxl::comm {

// The rank at the end of a chain of waits.
struct BlockingRank {
  int rank = -1;    // index in the world
  std::string why;  // "which has not started it"
};

// Finds the rank that blocks `call`, which this rank has not finished. The call
// waits for `rank`. That rank may wait for another rank, and so on: the
// recorder of each rank names the rank that it waits for. `started` is true if
// all ranks have started the call. Reads the recorders of many ranks, so call
// it only to make a message.
BlockingRank FindBlockingRank(const pool::Pool& pool, const Peers& peers,
                              const Group& group, const Call& call,
                              bool started, int rank);

}  // namespace jax_cxl::comm

#endif  // JAX_CXL_COMM_HEALTH_BLOCKING_RANK_H_
