#ifndef JAX_CXL_COMM_ENDPOINT_H_
#define JAX_CXL_COMM_ENDPOINT_H_

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cc/base/status.h"
#include "cc/base/ticks.h"
#include "cc/comm/call/backoff.h"
#include "cc/comm/call/call.h"
#include "cc/comm/completions.h"
#include "cc/comm/connect/arena.h"
#include "cc/comm/health/peers.h"
#include "cc/comm/health/stall_detector.h"
#include "cc/comm/order/channels.h"
#include "cc/comm/record/recorded_calls.h"
#include "cc/comm/record/recorder.h"
#include "cc/pool/pool.h"

namespace jax_cxl::comm {

// One rank of this process. Takes calls from XLA's threads and executes them,
// in all groups of the rank.
//
// The thread that starts a call tries to finish it. If the call is not finished
// after a short time, a thread of the endpoint takes over. StartCall never
// blocks for long, and may be called from any thread.
class Endpoint {
 public:
  Endpoint(pool::Pool* pool, Peers* peers, Completions* completions,
           const Options& options, int rank);
  // Fails all calls that have not finished.
  ~Endpoint();

  // Tells the other ranks that this rank starts no more calls. `reason` and
  // `program_ends` are those of Peers::Leave. Calls that have not finished then
  // fail on all ranks.
  void Leave(const std::string& reason, bool program_ends = true);

  // Starts a call with the ranks `members`. If nothing remains to be done by
  // this process, returns the call's status, and `call->done` never runs.
  // Otherwise returns nothing, and `done` runs later.
  std::optional<Status> StartCall(const std::vector<int32_t>& members,
                                  std::unique_ptr<Call> call);

  // Tells the stall detector about a call that has not reached this endpoint
  // yet, because it still waits for other ranks of the process (LevelCalls).
  void AddLocalWait(LocalWait wait);

  // Called when the rank's program has failed outside of its collectives. Ends
  // all collectives of the rank with `status`, and tells the other ranks.
  void Abort(const Status& status);
  Stats stats();
  // Adds this rank's sums for each operation (calls, bytes, times) to the entry
  // of the operation in `total`.
  void AddOperations(std::map<std::string, RecordedOperation>* total);

  // The rank's part of the pool, for users that open other channels in it.
  Arena* arena() { return &arena_; }
  Recorder* recorder() { return &recorder_; }

  // Returns the group of these ranks as this rank sees it. Fails with
  // kInvalidArgument if a rank does not exist, or if this rank is not a member.
  Result<Group> GroupOf(const std::vector<int32_t>& members) const;

 private:
  void Work();
  void WakeWorker();
  // The caller of the following functions must hold `progress_mutex_`.
  std::optional<Status> TryInline();
  bool Progress();
  bool ProgressChannels();
  void AcceptInbox();
  void Accept(const std::vector<int32_t>& members, std::unique_ptr<Call> call);
  Result<Channel*> ChannelFor(const std::vector<int32_t>& members);
  void OpenWaitingChannels();
  void CheckPeers();
  // `busy`: the channels that have calls.
  Status CheckStall(Clock::time_point now, const std::vector<Channel*>& busy);
  // If `status` is an error, fails all calls of this rank, including later
  // ones, and tells the other ranks. Otherwise does nothing.
  void Fail(const Status& status);
  void Finish();

  pool::Pool* pool_;
  Peers* peers_;
  Completions* completions_;
  Options options_;
  int rank_;

  // Calls that StartCall could not accept itself, because they are large or
  // because another thread held progress_mutex_. Progress accepts them later.
  std::mutex inbox_mutex_;
  std::vector<std::pair<std::vector<int32_t>, std::unique_ptr<Call>>> inbox_;
  std::atomic<int> arrived_{0};  // number of calls in the inbox

  // The number of calls submitted but not finished, plus the number of local
  // waits.
  std::atomic<int> pending_{0};
  std::condition_variable wake_;
  bool stop_ = false;

  std::mutex progress_mutex_;
  Arena arena_;
  Recorder recorder_;
  StallDetector stall_detector_;
  std::vector<LocalWait> local_waits_;
  Channels channels_;
  std::vector<Finished> finished_;  // calls to complete now
  Status failed_;
  Stats stats_;
  int under_way_ = 0;  // calls accepted and not finished
  const TickRate tick_rate_;
  uint64_t busy_since_ = 0;  // in ticks
  uint64_t busy_ticks_ = 0;  // earlier ticks that stats_.seconds lacks
  // The call that the thread inside StartCall waits for, and its outcome.
  const Call* inline_call_ = nullptr;
  std::optional<Status> inline_status_;
  Backoff inline_backoff_;
  int polls_without_check_ = 0;

  std::thread worker_;
};

}  // namespace jax_cxl::comm

#endif  // JAX_CXL_COMM_ENDPOINT_H_
