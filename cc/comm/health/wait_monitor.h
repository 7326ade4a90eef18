#ifndef JAX_CXL_COMM_HEALTH_WAIT_MONITOR_H_
#define JAX_CXL_COMM_HEALTH_WAIT_MONITOR_H_

#include <cstdint>
#include <string>
#include <vector>

#include "cc/base/status.h"
#include "cc/comm/call/call.h"
#include "cc/comm/call/options.h"
#include "cc/comm/health/peers.h"
#include "cc/pool/pool.h"

namespace jax_cxl::comm {

// What a rank waits for in a call.
struct Wait {
  const Call* call;
  std::vector<int> members;  // that have to act, as far as known
  bool started;              // all ranks have started the call
  uint64_t progress;         // changes whenever the call makes progress
};

// Watches the waits of one member of a group: warns of late peers, and returns
// an error when a peer is dead, has given up, or comes too late.
//
// Not thread-safe: belongs to one channel.
class WaitMonitor {
 public:
  WaitMonitor(const pool::Pool* pool, const Peers* peers,
              const Options& options, const Group& group);

  // `now` is Peers::AwakeTime.
  // Errors: kPeerLost, kMismatch, kDeadlineExceeded, kDataLoss, or a peer's.
  Status Check(const Wait& wait, Clock::time_point now);

 private:
  // What to say of a wait without progress.
  struct LateWait {
    std::string text;
    Details details;  // of the rank that blocks the call
    int rank;         // that rank, -1: nobody is known
  };
  LateWait DescribeWait(const Wait& wait, double waited) const;

  const pool::Pool* pool_;
  const Peers* peers_;
  Options options_;
  Group group_;
  Clock::time_point last_warning_;
  // The call that was checked last, its progress, and since when it has had it.
  uint64_t number_ = 0;
  uint64_t progress_ = 0;
  Clock::time_point last_progress_;
};

}  // namespace jax_cxl::comm

#endif  // JAX_CXL_COMM_HEALTH_WAIT_MONITOR_H_
