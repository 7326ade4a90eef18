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
#include <unordered_map>
#include <utility>
#include <vector>

#include "cc/base/status.h"
#include "cc/comm/arena.h"
#include "cc/comm/call.h"
#include "cc/comm/channel.h"
#include "cc/comm/completions.h"
#include "cc/comm/peers.h"
#include "cc/pool/pool.h"

namespace jax_cxl::comm {

struct Stats {
  uint64_t calls = 0;
  uint64_t bytes_published = 0;  // written to the pool
  uint64_t bytes_retrieved = 0;  // read from the pool
  double seconds = 0;            // in which at least one call was under way
};

// One rank of this process: takes calls from XLA's threads and moves them on,
// over all groups that the rank belongs to.
//
// A call is tried in the thread that submits it; if it cannot finish within
// moments, a thread of the endpoint takes over. Nobody ever blocks in Submit.
class Endpoint {
 public:
  Endpoint(pool::Pool* pool, Peers* peers, Completions* completions,
           const Options& options, int rank);
  // Fails what is still under way.
  ~Endpoint();

  // Starts a call. Returns its status if it finished at once, in which case
  // `call->done` never runs; otherwise `done` runs later. Any thread.
  std::optional<Status> Submit(const std::vector<int32_t>& members,
                               std::unique_ptr<Call> call);

  Stats stats();

 private:
  using Inbox =
      std::deque<std::pair<std::vector<int32_t>, std::unique_ptr<Call>>>;

  void Work();
  void WakeIfPending();
  // The following run with `progress_mutex_` held.
  bool Progress();
  bool ProgressChannels();
  void Accept();
  Result<Channel*> ChannelFor(const std::vector<int32_t>& members);
  void CheckPeers();
  void Fail(const Status& status);
  void Finish(std::vector<Channel::Finished> finished);

  pool::Pool* pool_;
  Peers* peers_;
  Completions* completions_;
  Options options_;
  int rank_;

  std::mutex inbox_mutex_;
  std::condition_variable wake_;
  Inbox inbox_;
  int pending_ = 0;  // calls submitted and not finished
  bool stop_ = false;
  Stats stats_;
  Clock::time_point busy_since_;

  std::mutex progress_mutex_;
  Arena arena_;
  std::unordered_map<uint64_t, std::unique_ptr<Channel>> channels_;
  Status failed_;
  // The call that the thread inside Submit waits for, and its outcome.
  const Call* inline_call_ = nullptr;
  std::optional<Status> inline_status_;
  int polls_without_check_ = 0;

  std::thread worker_;
};

}  // namespace jax_cxl::comm

#endif  // JAX_CXL_COMM_ENDPOINT_H_
