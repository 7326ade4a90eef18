#ifndef JAX_CXL_COMM_HEALTH_STALL_DETECTOR_H_
#define JAX_CXL_COMM_HEALTH_STALL_DETECTOR_H_

#include <cstdint>
#include <vector>

#include "cc/base/idle.h"
#include "cc/base/status.h"
#include "cc/comm/call/call.h"
#include "cc/comm/health/peers.h"
#include "cc/pool/pool.h"

namespace jax_cxl::comm {

// A call of a group that some members have not started.
struct UnmatchedCall {
  const std::vector<int32_t>* members = nullptr;
  const Call* call = nullptr;
  // If not 0, the call waits for memory of this rank (see wait_monitor.h).
  uint64_t needed_pool_bytes = 0;
};

// Detects that ranks wait for each other forever. This happens if they run
// different programs, or the same program in a different order.
//
// A rank *stalls* when it has waited for a while without progress, and its
// process does nothing else. Then it publishes which ranks it waits for. If all
// ranks that it waits for, directly or indirectly, are stalled at the same
// time, none of them can ever continue. *Beats* prove that it is the same time
// (docs/decisions/0008).
//
// Not thread-safe: its Endpoint serializes all use.
class StallDetector {
 public:
  StallDetector(pool::Pool* pool, Peers* peers, int rank);

  // Call it when a call has been added or has made progress.
  void NoteProgress();

  // Returns true if this rank, and all ranks that it waits for, seem to have
  // stalled. Check should then run more often.
  bool suspects_stall() const { return !seen_.empty(); }

  // Checks whether the ranks wait for each other forever. Call it from time to
  // time while nothing makes progress. `calls` has an entry for each group in
  // which the rank has calls. An entry without a `call` means that a call is
  // being executed, so the rank has not stalled. `started` counts the
  // collectives that the rank has ever started. Fails if the ranks can never
  // continue: with kResourceExhausted if one of them waits for memory,
  // otherwise with kMismatch.
  //
  // If a launch has failed on several ranks, each of them leaves out the calls
  // that it has not started. Then the ranks can continue once each has ended
  // the calls of this launch that it has started. Returns a call of the launch
  // if this rank has to do so. Otherwise returns null.
  Result<const Call*> Check(Clock::time_point now,
                            const std::vector<UnmatchedCall>& calls,
                            uint64_t started);

 private:
  // A rank that has published that it has stalled.
  struct StalledRank {
    int rank = 0;
    uint64_t version = 0;
    uint64_t beats = 0;
    pool::RankStall stall = {};
  };

  void Publish(const std::vector<UnmatchedCall>& calls, uint64_t started);
  void Retract();
  // Returns this rank, and then all ranks that it waits for, directly or
  // indirectly. Empty unless all of them have stalled.
  std::vector<StalledRank> FindWaitCycle() const;
  Status Report(const std::vector<StalledRank>& cycle) const;

  pool::Pool* pool_;
  Peers* peers_;
  int rank_;
  pool::Doorbells doorbells_;

  bool progressed_ = true;
  Clock::time_point last_progress_;
  uint64_t version_ = 0;  // odd: published
  bool fails_ = false;    // as published
  uint64_t beats_ = 0;
  Idle idle_;
  std::vector<StalledRank> seen_;  // the cycle when it was first seen
};

}  // namespace jax_cxl::comm

#endif  // JAX_CXL_COMM_HEALTH_STALL_DETECTOR_H_
