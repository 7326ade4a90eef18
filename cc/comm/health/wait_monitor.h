#ifndef JAX_CXL_COMM_HEALTH_WAIT_MONITOR_H_
#define JAX_CXL_COMM_HEALTH_WAIT_MONITOR_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cc/base/status.h"
#include "cc/comm/call/call.h"
#include "cc/comm/call/tuning.h"
#include "cc/comm/health/peers.h"
#include "cc/pool/pool.h"

namespace jax_cxl::comm {

// A wait of a rank in a call.
struct Wait {
  const Call* call;
  std::vector<int> members;  // members that it is known to wait for
  bool started;              // all ranks have started the call
  uint64_t progress;         // changes whenever the call makes progress
  // False if the call waits for this rank's own earlier work. In that case no
  // peer is late.
  bool begun = true;
  // Once the call has made no progress for this many seconds, it is certain
  // that the call waits for all of `members`. Before that, some of them may
  // already have sent everything that the call needs.
  double certain_after_s = 0;
  // If not 0, the call waits for memory of this rank, and not for a member. A
  // pool of this many bytes would have enough memory.
  uint64_t needed_pool_bytes = 0;
};

// The first call of a channel that a device has not finished, as the device's
// host sees it: a device reports less about a call than the CPU engine does.
// `call` has the number and the identity of the call's record in the flight
// recorder.
struct DeviceWait {
  const Call* call;
  bool begun;                // the device has begun the call
  std::vector<int> missing;  // members whose hosts have not enqueued it
  std::vector<int> at_work;  // other members whose devices have not finished it
  int waiting_for = -1;  // the member for which the device waits; -1: unknown
  uint64_t progress;     // changes whenever the device makes progress

  // Returns the member for which the call waits, as the recorder should name
  // it, or -1 if there is none or it is unknown.
  int member() const {
    if (!begun) return -1;
    return missing.empty() ? waiting_for : missing.front();
  }
};

// Watches the waits of one member of a group. It warns about late peers, and
// returns an error when a peer is dead, has given up, or is too late.
//
// Not thread-safe: belongs to one channel.
class WaitMonitor {
 public:
  WaitMonitor(const pool::Pool* pool, const Peers* peers,
              const WaitTimes& times, const Group& group);

  // `now` is Peers::AwakeTime. Errors: kPeerLost, kMismatch, kDeadlineExceeded,
  // kResourceExhausted (memory of this rank did not become free), kDataLoss, or
  // the error of a peer that gave up.
  Status Check(const Wait& wait, Clock::time_point now);
  Status Check(const DeviceWait& wait, Clock::time_point now);

  // Return the error of a call that the device itself has ended. Mismatch:
  // because `member` is in another call. Timeout: because `member` did not join
  // in time.
  Status Mismatch(const Call& call, int member) const;
  Status Timeout(const Call& call, int member) const;

 private:
  // The rank that blocks a call.
  struct BlockingRank {
    int rank = -1;     // -1: unknown
    std::string text;  // "which has not started it"
  };
  // Finds the rank that blocks the call. The call waits for a rank, which may
  // wait for another rank, and so on: the recorder of each rank names the rank
  // that it waits for. Reads the recorders of many ranks, so call it only to
  // make a message.
  BlockingRank FindBlockingRank(const Wait& wait) const;
  // Returns a member that has not started the call, preferably a silent member.
  std::optional<BlockingRank> FindMissing(const Call& call, uint64_t key) const;

  BlockingRank DescribeWait(const Wait& wait, double waited) const;
  Status CheckMember(const Wait& wait, int member, Clock::time_point now);
  // Fails if a program failed on `rank`, so that it will not start the call.
  Status CheckProgram(int rank, Clock::time_point now);
  Status CheckTime(const Wait& wait, double waited, Clock::time_point now);

  const pool::Pool* pool_;
  const Peers* peers_;
  WaitTimes times_;
  Group group_;
  Clock::time_point last_warning_;
  // The last call that was checked, its progress, and the time of that
  // progress.
  uint64_t number_ = 0;
  uint64_t progress_ = 0;
  Clock::time_point last_progress_;
  // Since when a program has failed on a member for which the last call waits,
  // but not on this rank.
  std::optional<Clock::time_point> failed_since_;
};

std::string LacksMemory(uint64_t needed_pool_bytes);

}  // namespace jax_cxl::comm

#endif  // JAX_CXL_COMM_HEALTH_WAIT_MONITOR_H_
