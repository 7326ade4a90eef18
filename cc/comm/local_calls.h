#ifndef JAX_CXL_COMM_LOCAL_CALLS_H_
#define JAX_CXL_COMM_LOCAL_CALLS_H_

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "cc/base/status.h"
#include "cc/comm/call/call.h"
#include "cc/comm/call/options.h"
#include "cc/comm/completions.h"

namespace jax_cxl::comm {

// Whether ranks of one process can run the operation by themselves.
bool RunsInProcess(plan::Op op);

// The part of one member in a collective of ranks of one process: reads the
// buffers of all members and writes its own output. `calls` has the call of
// each member, in their order. Reductions add in this order.
// Outputs of `past_caches_bytes` or more are copied past the caches.
void RunPart(const std::vector<std::unique_ptr<Call>>& calls, size_t member,
             uint64_t past_caches_bytes);

// Collectives of ranks that share a process: the first and last steps of a
// collective in levels (jax_cxl/_levels). The members read each other's
// buffers; nothing goes through the pool. A call needs no order: it starts when
// the last member has come, and waits for nothing after that.
//
// Start may be called from any thread, and does not wait for other members.
class LocalCalls {
 public:
  // `failed` says why calls that still wait for a member have to fail, if they
  // do; they also fail when the last member does not come in time.
  LocalCalls(Completions* completions, std::function<Status()> failed,
             const Options& options);
  // Fails what waits for a member.
  ~LocalCalls();

  // Starts the call of `members[call->request.rank]`. Returns its status if it
  // finished at once, in which case `call->done` never runs; otherwise `done`
  // runs later.
  std::optional<Status> Start(const std::vector<int32_t>& members,
                              std::unique_ptr<Call> call);

 private:
  // The identity of a call is unique in its group only.
  using Key = std::pair<int32_t, uint64_t>;  // first member, identity
  struct Waiting {
    std::vector<int32_t> members;
    std::vector<std::unique_ptr<Call>> calls;  // null: not there yet
    size_t missing = 0;
    Clock::time_point since;
  };

  void Watch();
  // Why the call must not wait any longer, OK while it may.
  Status Expired(const Waiting& waiting, Clock::time_point now) const;
  void Fail(Waiting waiting, const Status& status);

  Completions* completions_;
  const std::function<Status()> failed_;
  const std::chrono::duration<double> timeout_;
  const uint64_t past_caches_bytes_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::map<Key, Waiting> waiting_;
  bool stop_ = false;
  std::thread watcher_;
};

}  // namespace jax_cxl::comm

#endif  // JAX_CXL_COMM_LOCAL_CALLS_H_
