#ifndef JAX_CXL_COMM_RECORD_RECORDED_CALLS_H_
#define JAX_CXL_COMM_RECORD_RECORDED_CALLS_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cc/base/status.h"
#include "cc/pool/coherence/doorbell.h"
#include "cc/pool/layout/recorder_layout.h"

namespace jax_cxl::comm {

// A call as its rank recorded it. Times are seconds since 1970, by the clock of
// the rank's host; 0: not yet.
struct RecordedCall {
  uint64_t number = 0;  // which call of the rank, from 1
  uint64_t identity = 0;
  uint64_t group = 0;  // hash of the member list
  std::string name;    // as the user wrote it: "psum"
  std::string what;    // "psum: all_reduce sum of 8 float32"
  std::string site;    // "train.py:33 (step)", empty: not known
  double submitted = 0;
  double started = 0;
  double finished = 0;
  Code code = Code::kOk;
  int waiting_for = -1;  // a rank
};

// The newest `most` calls of a rank, oldest first. Leaves out what is being
// written or is another job's. Works on a live pool and on a JobRecord: what it
// reads may be anything.
std::vector<RecordedCall> ReadCalls(const pool::Recorder& recorder,
                                    const pool::Doorbells& doorbells,
                                    size_t most);

// What a rank has counted of the calls of a name.
struct RecordedOperation {
  std::string name;
  uint64_t calls = 0;
  uint64_t bytes = 0;  // of their operands
  double waited = 0;   // seconds, for other ranks
  double worked = 0;   // seconds, since all ranks were there
  uint64_t failed = 0;
};
std::vector<RecordedOperation> ReadOperations(const pool::Recorder& recorder,
                                              const pool::Coherence& coherence);

// Whether a rank has started a call, as far back as its recorder goes.
bool HasStarted(const pool::Recorder& recorder,
                const pool::Doorbells& doorbells, uint64_t identity,
                uint64_t group);

// The call of that identity and group, if the rank has started and not finished
// it; else the oldest that it has not finished, if any.
std::optional<RecordedCall> Unfinished(const pool::Recorder& recorder,
                                       const pool::Doorbells& doorbells,
                                       uint64_t identity, uint64_t group);

// When the rank last gave a sign of life, in seconds by two clocks of its host:
// since 1970, and since that host booted. 0: never.
struct SignOfLife {
  double realtime;
  double steady;
};
SignOfLife LastSignOfLife(const pool::Recorder& recorder,
                          const pool::Coherence& coherence);

// What a rank did last, to follow "rank 3 is gone: ": "it was in its call 17,
// psum: all_reduce sum of 8 float32, which it had just started".
std::string DescribeLastCall(const pool::Recorder& recorder,
                             const pool::Doorbells& doorbells);

}  // namespace jax_cxl::comm

#endif  // JAX_CXL_COMM_RECORD_RECORDED_CALLS_H_
