#ifndef JAX_CXL_COMM_RECORD_RECORDER_H_
#define JAX_CXL_COMM_RECORD_RECORDER_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "cc/base/status.h"
#include "cc/comm/call/call.h"
#include "cc/pool/coherence/doorbell.h"
#include "cc/pool/layout/recorder_layout.h"
#include "cc/pool/pool.h"

namespace jax_cxl::comm {

// Writes down what one rank calls, in its part of the pool, for its peers and
// for `python -m jax_cxl status`. It costs a call some stores to one line
// of memory; times are given to it, because callers read them for themselves
// and can leave out some. Where memory is not coherent, other hosts see a call
// when the rank waits in it, when it fails, and else with the next heartbeat.
//
// Any thread; one for each call. The rank's Endpoint and DeviceEndpoint write
// here.
class Recorder {
 public:
  Recorder(pool::Pool* pool, int rank);

  // A group got entry `index` of the rank's directory.
  void OpenGroup(int index, const std::vector<int32_t>& members);

  // Records a call that the rank has started, and gives it its number, by which
  // the other functions find it.
  void Record(Call* call, uint64_t group) {
    call->number = Record(*call, call->identity, group, call->submitted);
  }
  // The same for a call that does not know its number, identity and time.
  uint64_t Record(const Call& call, uint64_t identity, uint64_t group,
                  uint64_t ticks);
  // Every rank is inside the call.
  void Start(uint64_t number, uint64_t ticks);
  // `rank` has to act for the call to go on; -1: nobody is known to.
  void Wait(uint64_t number, int rank);
  void Finish(uint64_t number, const Status& status, uint64_t ticks);

  // What has been counted of each operation, with times in ticks.
  std::vector<pool::OperationRecord> operations();

  // How many calls the rank has submitted.
  uint64_t calls() const { return calls_.load(std::memory_order_relaxed); }

  // What `rank` did last, as far as it has told: "finished psum: all_reduce sum
  // of 4 float32, its collective 7".
  static std::string LastOf(const pool::Pool& pool, int rank);

  // The rank's process lives; what it has recorded reaches the pool. Runs every
  // now and then, on any one thread.
  static void Beat(pool::Pool* pool, int rank);

 private:
  // The following run while `submitting_` is held.
  uint32_t SiteOf(const std::string& text);
  uint32_t OperationOf(std::string_view name);
  void PublishOperation(uint32_t index);

  // Null when later calls have taken the place of this one.
  pool::CallRecord* Find(uint64_t number);

  pool::Coherence coherence_;
  pool::Doorbells doorbells_;
  pool::Recorder* recorder_;
  std::atomic<uint64_t> calls_{0};
  // Held while a call is submitted, and while it is counted: cheaper than a
  // mutex, and rarely contended.
  std::atomic_flag submitting_;
  std::unordered_map<std::string, uint32_t> sites_;  // text -> number
  uint32_t newest_site_ = 0;
  // What the pool has too, so that nothing is read from there.
  std::array<pool::OperationRecord, pool::kRecordedOperations> operations_ = {};
};

}  // namespace jax_cxl::comm

#endif  // JAX_CXL_COMM_RECORD_RECORDER_H_
