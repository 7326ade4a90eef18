#ifndef JAX_CXL_COMM_COMMUNICATOR_H_
#define JAX_CXL_COMM_COMMUNICATOR_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "cc/base/status.h"
#include "cc/comm/call/call.h"
#include "cc/comm/call/stats.h"

namespace jax_cxl::comm {

// One rank of this process, as the handlers that XLA calls see it: an Endpoint
// if the rank is a CPU device, a DeviceEndpoint if it is a GPU.
//
// Thread-safe.
class Communicator {
 public:
  virtual ~Communicator() = default;

  // Starts a call with the ranks `members`. If nothing remains to be done by
  // this process, returns the call's status, and `call->done` never runs.
  // Otherwise returns nothing, and `done` runs later. A GPU executes the call
  // in the order of its stream, so nothing remains once the call is enqueued.
  virtual std::optional<Status> StartCall(const std::vector<int32_t>& members,
                                          std::unique_ptr<Call> call) = 0;

  // Called when the rank's program has failed outside of its collectives. Ends
  // all collectives of the rank with `status`, and tells the other ranks.
  virtual void Abort(const Status& status) = 0;

  virtual Stats stats() = 0;
};

}  // namespace jax_cxl::comm

#endif  // JAX_CXL_COMM_COMMUNICATOR_H_
