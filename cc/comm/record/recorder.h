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
#include "cc/comm/call/backoff.h"
#include "cc/comm/call/call.h"
#include "cc/pool/coherence/doorbell.h"
#include "cc/pool/layout/recorder_layout.h"
#include "cc/pool/pool.h"

namespace jax_cxl::comm {

// Records the calls of one rank in its part of the pool, for its peers and for
// `python -m jax_cxl status`. Recording a call costs a few stores to one
// record. Callers pass the times, because they have already read the clock and
// can often reuse a reading. Without coherence, other hosts see a record when
// the rank waits in the call, when the call fails, or with the next heartbeat.
//
// Thread-safe, but only one thread may record the steps of one call. The rank's
// Endpoint and DeviceEndpoint share the recorder.
class Recorder {
 public:
  Recorder(pool::Pool* pool, int rank);

  // Records a call that the rank has started. Sets the call's number, by which
  // the other functions find the record.
  void Record(Call* call, uint64_t group);
  // Records that every rank has started the call.
  void Start(uint64_t number, uint64_t ticks);
  // Records that the call waits for `rank`, or for an unknown rank if it is -1.
  void Wait(uint64_t number, int rank);
  void Finish(uint64_t number, const Status& status, uint64_t ticks);

  // Returns the sums over the calls of each operation, with times in ticks.
  std::vector<pool::OperationRecord> operations();

  uint64_t calls() const { return calls_.load(std::memory_order_relaxed); }

  // Publishes the recent records and the current time of the rank's clocks. The
  // time shows that the rank's process lives. One thread calls it at every
  // heartbeat.
  static void Beat(pool::Pool* pool, int rank);

 private:
  // The caller of the following functions must hold `submitting_`. A thread
  // holds it while it submits or counts a call. There is rarely contention.
  uint32_t SiteOf(const std::string& text);
  uint32_t OperationOf(std::string_view name);

  // Returns null if a later call has replaced the record.
  pool::CallRecord* Find(uint64_t number);

  pool::Coherence coherence_;
  pool::Doorbells doorbells_;
  pool::Recorder* recorder_;
  std::atomic<uint64_t> calls_{0};
  SpinLock submitting_;
  std::unordered_map<std::string, uint32_t> sites_;  // text -> number
  uint32_t newest_site_ = 0;
  // The operation records, as they are in the pool. With this copy, no function
  // has to read the pool.
  std::array<pool::OperationRecord, pool::kRecordedOperations> operations_ = {};
};

}  // namespace jax_cxl::comm

#endif  // JAX_CXL_COMM_RECORD_RECORDER_H_
