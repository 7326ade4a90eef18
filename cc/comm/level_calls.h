#ifndef JAX_CXL_COMM_LEVEL_CALLS_H_
#define JAX_CXL_COMM_LEVEL_CALLS_H_

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <stop_token>
#include <thread>
#include <utility>
#include <vector>

#include "cc/base/status.h"
#include "cc/comm/call/call.h"
#include "cc/comm/call/tuning.h"
#include "cc/comm/completions.h"
#include "cc/engine/cpu/member_buffers.h"

namespace jax_cxl::comm {

// Executes collectives in levels, in groups with several ranks in each process.
// Once all ranks of a process have started a call, each of them is responsible
// for one part of the data. Rank i of a process calls a collective for its part
// with the ranks i of the other processes. This collective uses the buffers of
// all ranks of the process (cpu::MemberBuffers). The call is complete when all
// parts are complete.
//
// Start may be called from any thread, and does not wait for other ranks.
class LevelCalls {
 public:
  // Starts the call of `rank` in the group `members`, like Endpoint::StartCall.
  using StartCall = std::function<std::optional<Status>(
      int32_t rank, const std::vector<int32_t>& members,
      std::unique_ptr<Call> call)>;

  // Tells the endpoint of `rank` that a call of the rank waits for other ranks
  // of the process.
  using NoteWait = std::function<void(int32_t rank, LocalWait wait)>;

  // `failed` returns an error once the job has failed. Calls that still wait
  // for a rank of the process then fail with this error. They also fail if the
  // last rank does not start the call in time.
  LevelCalls(Completions* completions, StartCall start_call, NoteWait note_wait,
             std::function<Status()> failed, const Options& options);
  // Fails the calls that wait for a rank of the process.
  ~LevelCalls();

  // Starts the call of rank `ranks[call->request.rank]`. `ranks` are the
  // members of its group, and `grid` describes how they are distributed over
  // processes. If the call finished at once, returns its status, and
  // `call->done` never runs. Otherwise `done` runs later.
  std::optional<Status> Start(const std::vector<int32_t>& ranks,
                              const cpu::Grid& grid,
                              std::unique_ptr<Call> call);

 private:
  class Running;
  // The first rank of the process and the identity of the call. An identity is
  // unique only in its group. So calls of different groups may have the same
  // identity, and the rank distinguishes them.
  using Key = std::pair<int32_t, uint64_t>;  // first rank of the process
  struct Waiting {
    std::vector<int32_t> ranks;                // of the process
    std::vector<std::unique_ptr<Call>> calls;  // null: not there yet
    size_t missing = 0;
    Clock::time_point since;
    // True once the calls no longer wait: all ranks of the process have started
    // the call, or the calls have failed.
    std::shared_ptr<std::atomic<bool>> over;
    size_t noted = 0;  // calls for which NoteWait has run
  };

  // Starts the collective for the part of rank `member` of this process, which
  // is number `process` in the grid.
  void StartPart(const std::shared_ptr<Running>& running, int process,
                 int member, const std::vector<int32_t>& ranks);
  void Watch(const std::stop_token& stop);
  void NoteWaits(Waiting* waiting);
  Status Expired(const Waiting& waiting, Clock::time_point now) const;
  void Fail(Waiting waiting, const Status& status);

  Completions* completions_;
  const StartCall start_call_;
  const NoteWait note_wait_;
  const std::function<Status()> failed_;
  const std::chrono::duration<double> timeout_;
  const uint64_t past_caches_bytes_;
  std::mutex mutex_;
  std::condition_variable_any wake_;
  std::map<Key, Waiting> waiting_;
  std::jthread watcher_;
};

}  // namespace jax_cxl::comm

#endif  // JAX_CXL_COMM_LEVEL_CALLS_H_
