#ifndef JAX_CXL_COMM_HEALTH_STALL_DETECTOR_H_
#define JAX_CXL_COMM_HEALTH_STALL_DETECTOR_H_

#include <cstdint>
#include <string>
#include <vector>

#include "cc/base/idle.h"
#include "cc/base/status.h"
#include "cc/comm/call/call.h"
#include "cc/comm/health/peers.h"
#include "cc/pool/pool.h"

namespace jax_cxl::comm {

// What a rank waits for in one group: that all its members start a call.
struct UnmatchedCall {
  const std::vector<int32_t>* members = nullptr;
  const Call* call = nullptr;
};

// Detects that ranks wait for each other for ever, which happens when they run
// different programs, or the same program in a different order.
//
// A rank *stalls* if it waits in calls that others have not started, nothing
// has made progress for a moment, and its process does nothing else. It says so
// in its page, with the ranks that it waits for. If a rank, those that it waits
// for, those that they wait for and so on have all stalled at one time, none of
// them can ever continue: a late rank would not wait, or it would compute. That
// they have stalled at one time follows from *beats*: once a rank has seen all
// others stalled, each of them has to find itself still stalled afterwards.
// (docs/decisions/0008)
//
// Not thread-safe: its Endpoint serializes all use.
class StallDetector {
 public:
  StallDetector(pool::Pool* pool, Peers* peers, int rank);

  // A call has come, or one has made progress.
  void NoteProgress();

  // Whether all ranks seem to have stalled, so that Check is to run more often.
  bool suspects_stall() const { return !seen_.empty(); }

  // Runs now and then while nothing makes progress. `calls` are all calls of
  // the rank. A call that is being executed has no `call`; then the rank has
  // not stalled. `started` counts the collectives that it has ever started.
  // Errors: kMismatch.
  Status Check(Clock::time_point now, const std::vector<UnmatchedCall>& calls,
               uint64_t started);

 private:
  // Another rank that says that it has stalled.
  struct StalledRank {
    int rank = 0;
    uint64_t version = 0;
    uint64_t beats = 0;
  };

  void Publish(const std::vector<UnmatchedCall>& calls, uint64_t started);
  // All ranks that this one waits for, directly or not; empty unless all of
  // them have stalled.
  std::vector<StalledRank> FindWaitCycle() const;
  Status Report(const std::vector<StalledRank>& cycle) const;

  pool::Pool* pool_;
  Peers* peers_;
  int rank_;
  pool::Doorbells doorbells_;

  bool progressed_ = true;
  Clock::time_point last_progress_;
  uint64_t version_ = 0;  // odd: published
  uint64_t beats_ = 0;
  Idle idle_;
  std::vector<StalledRank> seen_;  // when all were first seen stalled
};

}  // namespace jax_cxl::comm

#endif  // JAX_CXL_COMM_HEALTH_STALL_DETECTOR_H_
