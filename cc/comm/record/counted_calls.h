#ifndef JAX_CXL_COMM_RECORD_COUNTED_CALLS_H_
#define JAX_CXL_COMM_RECORD_COUNTED_CALLS_H_

#include <array>
#include <cstdint>

#include "cc/base/status.h"
#include "cc/comm/call/call.h"
#include "cc/comm/record/recorder.h"
#include "cc/pool/layout/recorder_layout.h"

namespace jax_cxl::comm {

// Puts into a rank's flight recorder the calls of a group that a device
// executes one after another, and of which its host only sees how many are
// done. A call's place among the group's, from 0, tells which one it is on all
// ranks.
//
// Not thread-safe.
class CountedCalls {
 public:
  // `group`: key of the group's channel.
  CountedCalls(Recorder* recorder, uint64_t group)
      : recorder_(recorder), group_(group) {}

  // Runs once more for the next call at the place of one that failed before it
  // was enqueued.
  void Record(uint64_t place, const Call& call);
  // `rank` has to act for the call to go on; -1: nobody is known to.
  void Wait(uint64_t place, int rank);
  void Fail(uint64_t place, const Status& status);
  // Every rank is in the calls before `started`; those before `finished` are
  // done. Times in the recorder are those of this.
  void Advance(uint64_t started, uint64_t finished);

 private:
  // The number in the recorder; 0 for a call that is no longer in it.
  uint64_t NumberOf(uint64_t place) const;

  Recorder* recorder_;
  uint64_t group_;
  uint64_t submitted_ = 0;
  uint64_t started_ = 0;
  uint64_t finished_ = 0;
  std::array<uint64_t, pool::kRecordedCalls> numbers_ = {};  // by place
};

}  // namespace jax_cxl::comm

#endif  // JAX_CXL_COMM_RECORD_COUNTED_CALLS_H_
