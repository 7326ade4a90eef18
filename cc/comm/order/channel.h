#ifndef JAX_CXL_COMM_ORDER_CHANNEL_H_
#define JAX_CXL_COMM_ORDER_CHANNEL_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "cc/base/status.h"
#include "cc/comm/call/call.h"
#include "cc/comm/call/plan_cache.h"
#include "cc/comm/connect/arena.h"
#include "cc/comm/connect/connection.h"
#include "cc/comm/health/peers.h"
#include "cc/comm/health/wait_monitor.h"
#include "cc/comm/order/negotiation.h"
#include "cc/comm/record/recorder.h"
#include "cc/engine/cpu/executor.h"
#include "cc/pool/pool.h"

namespace jax_cxl::comm {

// One rank as a member of one group. A Channel connects to the other members,
// agrees with them on the order of calls, and executes one call after another.
// Progress never waits.
//
// Not thread-safe: its Endpoint serializes all use.
class Channel {
 public:
  Channel(pool::Pool* pool, Peers* peers, Recorder* recorder,
          const Options& options, Group group);

  // Returns true if the channel has memory for this member's part. Only then
  // does it execute calls. Until then, calls wait in it.
  bool open() const { return connection_.open(); }
  // Allocates memory that any channel can use. Fails with kResourceExhausted.
  Result<pool::ChannelPlace> Allocate(Arena* arena) const {
    return connection_.Allocate(arena);
  }
  // Takes memory for this member's part, and publishes its place.
  Status Open(const pool::ChannelPlace& place);
  // Returns true if this member no longer needs its part: it has no call, and
  // every living member has finished all calls that this member has finished.
  bool CanClose() const;
  // Takes the memory from the channel, for another channel. Requires CanClose.
  pool::ChannelPlace Close();

  // Takes a call that this rank has started. On error, no rank can execute the
  // call, and the caller keeps it.
  Status AddCall(std::unique_ptr<Call>& call);

  // Does as much as possible without waiting, and appends finished calls.
  // Returns true if anything made progress. After an error the group is
  // unusable: the caller finishes all its calls with that error.
  Result<bool> Progress(std::vector<Finished>* finished);

  // Finishes with `status` the calls of a launch that some member has not
  // started. The other members must never start them.
  void EndLaunch(uint64_t program, uint32_t launch, const Status& status,
                 std::vector<Finished>* finished);

  void Fail(const Status& status, std::vector<Finished>* finished);

  const std::vector<int32_t>& members() const {
    return connection_.group().members;
  }
  uint64_t key() const { return connection_.key(); }
  bool idle() const { return waiting_.empty() && !current_ && !pending(); }
  // When the channel last got a call. The owner counts the uses of its
  // channels, and this is the number of the last use.
  uint64_t last_use() const { return last_use_; }
  void set_last_use(uint64_t use) { last_use_ = use; }
  // While the channel waits for memory: how many bytes a pool would need to
  // have enough. Otherwise 0.
  uint64_t needed_pool() const { return open() ? 0 : needed_pool_bytes_; }
  void set_needed_pool(uint64_t bytes) { needed_pool_bytes_ = bytes; }
  // Returns the oldest call if all calls wait for other members to start them.
  // Otherwise returns null.
  const Call* unmatched() const { return current_ ? nullptr : oldest(); }
  const cpu::Traffic& traffic() const { return traffic_; }

  // Checks for dead peers, failed peers and deadlines. Call it when Progress
  // returns false.
  Status CheckPeers(Clock::time_point now);

 private:
  Result<bool> TryProgress(std::vector<Finished>* finished);
  size_t pending() const { return negotiation_ ? negotiation_->pending() : 0; }
  int32_t RankOf(int member) const { return members()[member]; }
  Result<bool> Connect();
  Result<bool> ExchangeSubmissions(std::vector<Finished>* finished);
  Result<bool> StartNext();
  std::vector<int> WaitingFor() const;
  const Call* oldest() const;
  uint64_t ReleasedCalls();
  void RecordStart(const Call& call);

  pool::Pool* pool_;
  const Peers* peers_;
  Recorder* recorder_;
  Connection connection_;
  PlanCache plan_cache_;
  WaitMonitor wait_monitor_;
  uint64_t past_caches_bytes_;

  // True if the only call under way was added after the last Progress. If that
  // call starts now, it has not waited, so its submission time is also its
  // start time. This saves one clock read.
  bool at_once_ = false;
  // Calls submitted before all members were found.
  std::deque<StartedCall> waiting_;
  std::unique_ptr<Negotiation> negotiation_;
  std::unique_ptr<Call> current_;
  std::optional<cpu::Execution> execution_;
  uint64_t rounds_ = 0;  // rounds of all finished calls
  // How many calls this member has finished, and how many of them it has
  // reported in its control block.
  uint64_t finished_ = 0;
  uint64_t told_finished_ = 0;
  uint64_t needed_pool_bytes_ = 0;
  uint64_t last_use_ = 0;

  // For each call that some peer may not have passed yet: the number of rounds
  // of the group up to the end of the call.
  std::deque<uint64_t> call_ends_;
  uint64_t released_calls_ = 0;  // calls that all peers have passed

  cpu::Traffic traffic_;
};

}  // namespace jax_cxl::comm

#endif  // JAX_CXL_COMM_ORDER_CHANNEL_H_
