#ifndef JAX_CXL_COMM_ENDPOINT_H_
#define JAX_CXL_COMM_ENDPOINT_H_

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "cc/base/status.h"
#include "cc/base/ticks.h"
#include "cc/comm/call/backoff.h"
#include "cc/comm/call/call.h"
#include "cc/comm/call/stats.h"
#include "cc/comm/completions.h"
#include "cc/comm/connect/arena.h"
#include "cc/comm/health/peers.h"
#include "cc/comm/health/stall_detector.h"
#include "cc/comm/order/channel.h"
#include "cc/comm/record/recorded_calls.h"
#include "cc/comm/record/recorder.h"
#include "cc/pool/pool.h"

namespace jax_cxl::comm {

// One rank of this process: takes calls from XLA's threads and moves them on,
// over all groups that the rank belongs to.
//
// A call is tried in the thread that submits it; if it cannot finish within
// moments, a thread of the endpoint takes over. StartCall never blocks.
class Endpoint {
 public:
  Endpoint(pool::Pool* pool, Peers* peers, Completions* completions,
           const Options& options, int rank);
  // Fails what is still under way.
  ~Endpoint();

  // Tells the other ranks that this one starts no more calls: `reason` as in
  // Peers::Leave. Those that are under way fail everywhere.
  void Leave(const std::string& reason, bool program_ends = true);

  // Starts a call. Returns its status if it finished at once, in which case
  // `call->done` never runs; otherwise `done` runs later. Any thread.
  std::optional<Status> StartCall(const std::vector<int32_t>& members,
                                  std::unique_ptr<Call> call);

  Stats stats();
  // What has been counted of each operation.
  std::vector<RecordedOperation> operations();

  // The rank's part of the pool, for whoever opens other channels in it.
  Arena* arena() { return &arena_; }
  // And the rank's recorder.
  Recorder* recorder() { return &recorder_; }

  // The group of these ranks as this rank sees it.
  // Errors: kInvalidArgument (no such rank, or this one is not among them).
  Result<Group> GroupOf(const std::vector<int32_t>& members) const;

 private:
  using Inbox =
      std::deque<std::pair<std::vector<int32_t>, std::unique_ptr<Call>>>;

  void Work();
  // The following run with `progress_mutex_` held.
  std::optional<Status> TryInline();
  bool Progress();
  bool ProgressChannels();
  void AcceptInbox();
  void Accept(const std::vector<int32_t>& members, std::unique_ptr<Call> call);
  Result<Channel*> ChannelFor(const std::vector<int32_t>& members);
  void CheckPeers();
  void Fail(const Status& status);
  // Completes what is in `finished_`.
  void Finish();

  pool::Pool* pool_;
  Peers* peers_;
  Completions* completions_;
  Options options_;
  int rank_;

  // Calls submitted while another thread was at work, not accepted yet.
  std::mutex inbox_mutex_;
  Inbox inbox_;
  std::atomic<int> arrived_{0};  // in the inbox

  std::atomic<int> pending_{0};  // calls submitted and not finished
  std::condition_variable wake_;
  bool stop_ = false;

  std::mutex progress_mutex_;
  Arena arena_;
  Recorder recorder_;
  StallDetector stall_detector_;
  std::vector<std::unique_ptr<Channel>> channels_;
  std::vector<Finished> finished_;  // empty but while calls are being finished
  Status failed_;
  Stats stats_;
  int under_way_ = 0;  // calls accepted and not finished
  const TickRate tick_rate_;
  uint64_t busy_since_ = 0;  // in ticks, as the next
  uint64_t busy_ticks_ = 0;  // before that, not in stats_.seconds yet
  // The call that the thread inside StartCall waits for, and its outcome.
  const Call* inline_call_ = nullptr;
  std::optional<Status> inline_status_;
  Backoff inline_backoff_;
  int polls_without_check_ = 0;

  std::thread worker_;
};

}  // namespace jax_cxl::comm

#endif  // JAX_CXL_COMM_ENDPOINT_H_
