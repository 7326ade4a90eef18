#ifndef JAX_CXL_COMM_HEALTH_DEVICE_WAITS_H_
#define JAX_CXL_COMM_HEALTH_DEVICE_WAITS_H_

#include <cstdint>
#include <vector>

#include "cc/base/status.h"
#include "cc/comm/call/call.h"
#include "cc/comm/call/tuning.h"
#include "cc/comm/health/peers.h"
#include "cc/comm/health/wait_monitor.h"
#include "cc/pool/pool.h"

namespace jax_cxl::comm {

// The first call of a channel that a device has not finished, as the device's
// host sees it. `call` has the number and the identity of the call's record in
// the flight recorder.
struct DeviceWait {
  const Call* call;
  bool begun;                // the device has begun the call
  std::vector<int> missing;  // members whose hosts have not enqueued it
  std::vector<int> at_work;  // other members whose devices have not finished it
  int waiting_for = -1;  // the member for which the device waits; -1: unknown
  uint64_t progress;     // changes whenever the device makes progress
};

// Watches the calls of a channel between devices. A device reports less about a
// call to its host than the CPU engine does. This class infers the rest, and
// leaves the decisions to a WaitMonitor.
//
// Needs no CUDA. Not thread-safe.
class DeviceWaits {
 public:
  DeviceWaits(const pool::Pool* pool, const Peers* peers,
              const WaitTimes& times, const Group& group);

  // Returns the member for which the call waits, as the recorder should name
  // it, or -1 if there is none or it is unknown.
  static int WaitingFor(const DeviceWait& wait);

  Status Check(const DeviceWait& wait, Clock::time_point now);

  // Return the error of a call that the device itself has ended. Mismatch:
  // because `member` is in another call. Timeout: because `member` did not join
  // in time.
  Status Mismatch(const Call& call, int member) const;
  Status Timeout(const Call& call, int member) const;

 private:
  const pool::Pool* pool_;
  const Peers* peers_;
  Group group_;
  WaitMonitor monitor_;
};

}  // namespace jax_cxl::comm

#endif  // JAX_CXL_COMM_HEALTH_DEVICE_WAITS_H_
