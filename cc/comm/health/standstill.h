#ifndef JAX_CXL_COMM_HEALTH_STANDSTILL_H_
#define JAX_CXL_COMM_HEALTH_STANDSTILL_H_

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

// Finds out that ranks wait for each other for ever, which happens when they
// run different programs, or the same in a different order.
//
// A rank *stands still* while it waits in calls that others have not started,
// nothing has come or gone for a moment, and its process does nothing else: it
// says so in its page, with the ranks that it waits for. Where a rank, those
// that it waits for, those that they wait for and so on all stand still at one
// time, none of them can ever move again: a late rank would not wait, or it
// would compute. That they do at one time follows from *beats*: once all have
// been seen standing still, each has to find itself still standing afterwards.
// (docs/decisions/0008)
//
// Not thread-safe: its Endpoint serializes all use.
class Standstill {
 public:
  Standstill(pool::Pool* pool, Peers* peers, int rank);

  // A call came, or one moved on.
  void Move();

  // Whether all ranks seem to stand still, so that Check is to run more often.
  bool suspects() const { return !seen_.empty(); }

  // Runs every now and then while nothing moves. `calls` are all calls of the
  // rank; one that is being executed has no `call`, and then it does not stand
  // still. `started` counts the collectives that it has ever started.
  // Errors: kMismatch.
  Status Check(Clock::time_point now, const std::vector<UnmatchedCall>& calls,
               uint64_t started);

 private:
  // What another rank says of itself.
  struct Other {
    int rank = 0;
    uint64_t version = 0;
    uint64_t beats = 0;
  };

  void Publish(const std::vector<UnmatchedCall>& calls, uint64_t started);
  // All ranks that this one waits for, directly or not; none unless all of them
  // stand still.
  std::vector<Other> Knot() const;
  Status Report(const std::vector<Other>& knot) const;

  pool::Pool* pool_;
  Peers* peers_;
  int rank_;
  pool::Doorbells doorbells_;

  bool moved_ = true;
  Clock::time_point since_;
  uint64_t version_ = 0;  // odd: published
  uint64_t beats_ = 0;
  Idle idle_;
  std::vector<Other> seen_;  // when all were first seen standing still
};

}  // namespace jax_cxl::comm

#endif  // JAX_CXL_COMM_HEALTH_STANDSTILL_H_
