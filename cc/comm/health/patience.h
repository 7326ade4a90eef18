#ifndef JAX_CXL_COMM_HEALTH_PATIENCE_H_
#define JAX_CXL_COMM_HEALTH_PATIENCE_H_

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
  bool inside;               // all ranks have started the call
  uint64_t moved;            // another number whenever something moved
};

// Decides how long a group's member goes on waiting: warns of late peers, and
// gives up when one is dead, has given up itself, or comes too late.
//
// Not thread-safe: belongs to one channel.
class Patience {
 public:
  Patience(const pool::Pool* pool, const Peers* peers, const Options& options,
           const Group& group);

  // `now` is Peers::AwakeTime.
  // Errors: kPeerLost, kMismatch, kDeadlineExceeded, kDataLoss, or a peer's.
  Status Check(const Wait& wait, Clock::time_point now);

 private:
  // What to say when nothing has moved for so long.
  struct Lateness {
    std::string text;
    Details culprit;
    int rank;  // the culprit's, -1: nobody is known
  };
  Lateness Late(const Wait& wait, double waited) const;

  const pool::Pool* pool_;
  const Peers* peers_;
  Options options_;
  Group group_;
  Clock::time_point last_warning_;
  // Which call was looked at last, how far it had come, and since when.
  uint64_t number_ = 0;
  uint64_t stand_ = 0;
  Clock::time_point moved_;
};

}  // namespace jax_cxl::comm

#endif  // JAX_CXL_COMM_HEALTH_PATIENCE_H_
