#ifndef JAX_CXL_COMM_RECORD_RECORDED_CALLS_H_
#define JAX_CXL_COMM_RECORD_RECORDED_CALLS_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cc/base/status.h"
#include "cc/comm/call/call.h"
#include "cc/pool/coherence/doorbell.h"
#include "cc/pool/layout/recorder_layout.h"
#include "cc/pool/pool.h"

namespace jax_cxl::comm {

// A call as its rank has recorded it. Times are seconds since 1970, by the
// clock of the rank's host. A time is 0 if the call has not come that far.
struct RecordedCall {
  uint64_t number = 0;  // counts the rank's calls from 1
  uint64_t identity = 0;
  uint64_t group = 0;  // hash of the member list
  std::string name;    // the function that the user called: "psum"
  std::string what;    // "psum: all_reduce sum of 8 float32"
  std::string site;    // "train.py:33 (step)"; empty: unknown
  double submitted = 0;
  double started = 0;
  double finished = 0;
  Code code = Code::kOk;
  int waiting_for = -1;  // a rank; -1: none
};

// Returns the newest `most` calls of a rank, oldest first. Leaves out records
// that are being written and records of another job. Works on a live pool and
// on a JobRecord, even if their contents are invalid.
std::vector<RecordedCall> ReadCalls(const pool::Recorder& recorder,
                                    const pool::Doorbells& doorbells,
                                    size_t most);

// Sums over a rank's calls of one operation.
struct RecordedOperation {
  std::string name;
  uint64_t calls = 0;
  uint64_t bytes = 0;  // of their operands
  double waited = 0;   // seconds of waiting for other ranks
  double worked = 0;   // seconds after all ranks had started the call
  uint64_t failed = 0;
};
std::vector<RecordedOperation> ReadOperations(const pool::Recorder& recorder,
                                              const pool::Coherence& coherence);

uint64_t KeyOf(const pool::Pool& pool, int rank, const Call& call);

// Returns the call with this identity and group, if the rank has started it and
// the recorder still has it.
std::optional<RecordedCall> FindCall(const pool::Recorder& recorder,
                                     const pool::Doorbells& doorbells,
                                     uint64_t identity, uint64_t group);

// Returns the text of a source line by its number, or an empty text if the
// recorder does not have it.
std::string ReadSite(const pool::Recorder& recorder, uint32_t number,
                     const pool::Doorbells& doorbells);

// Returns the call with this identity and group, if the rank has started it and
// not finished it. Otherwise returns the oldest call that the rank has not
// finished, if any.
std::optional<RecordedCall> Unfinished(const pool::Recorder& recorder,
                                       const pool::Doorbells& doorbells,
                                       uint64_t identity, uint64_t group);

// Describes the rank's last call, to follow "rank 3 is gone: ". For example:
// "it was in its call number 17, psum: all_reduce sum of 8 float32, which it
// had just started".
std::string DescribeLastCall(const pool::Recorder& recorder,
                             const pool::Doorbells& doorbells);

// Describes the rank's last call as a detail of an error: "finished psum:
// all_reduce sum of 4 float32, its collective number 7".
std::string LastOf(const pool::Pool& pool, int rank);

}  // namespace jax_cxl::comm

#endif  // JAX_CXL_COMM_RECORD_RECORDED_CALLS_H_
