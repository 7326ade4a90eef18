#ifndef JAX_CXL_COMM_RECORD_GROUP_RECORD_H_
#define JAX_CXL_COMM_RECORD_GROUP_RECORD_H_

#include <array>
#include <cstdint>

#include "cc/base/status.h"
#include "cc/comm/call/call.h"
#include "cc/comm/record/recorder.h"
#include "cc/pool/layout/recorder_layout.h"

namespace jax_cxl::comm {

// Records the calls that a device executes for one group, in the rank's flight
// recorder. The device executes the calls one after another, and the host sees
// only how many are done. The *place* of a call is its index in the group, from
// 0. The same call has the same place on all ranks.
//
// Not thread-safe.
class GroupRecord {
 public:
  GroupRecord(Recorder* recorder, uint64_t group)
      : recorder_(recorder), group_(group) {}

  // Records the next call, and sets its number and identity. The place
  // of a call that failed before it was enqueued is given to the next call.
  void Record(uint64_t place, Call* call);
  void Wait(uint64_t place, int rank);
  void Fail(uint64_t place, const Status& status);
  // Records that every rank has started the calls before place `started`, and
  // that this rank has finished the calls before place `finished`. The recorder
  // gets the time at which Advance is called.
  void Advance(uint64_t started, uint64_t finished);
  // Skips the calls before `place`: recorded calls count as finished, and the
  // others are never recorded. Call it before Record.
  void SkipTo(uint64_t place);

 private:
  // Returns the call's number in the recorder, or 0 if the recorder no longer
  // has it.
  uint64_t NumberOf(uint64_t place) const;

  Recorder* recorder_;
  uint64_t group_;
  uint64_t submitted_ = 0;
  uint64_t started_ = 0;
  uint64_t finished_ = 0;
  std::array<uint64_t, pool::kRecordedCalls> numbers_ = {};  // by place
};

}  // namespace jax_cxl::comm

#endif  // JAX_CXL_COMM_RECORD_GROUP_RECORD_H_
