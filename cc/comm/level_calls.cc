#include "cc/comm/level_calls.h"

#include <sys/prctl.h>

#include <algorithm>
#include <utility>

#include "cc/base/ticks.h"

namespace jax_cxl::comm {
namespace {

// If all ranks are in one process, each part is copied in pieces of this many
// bytes. A piece is small enough that the bytes read and written stay in the
// second-level cache.
constexpr uint64_t kPieceBytes = uint64_t{128} << 10;
// How often the watcher checks whether the job has failed.
constexpr auto kWatchInterval = std::chrono::milliseconds(50);

}  // namespace

// The calls of all ranks of a process in one collective.
class LevelCalls::Running {
 public:
  Running(Completions* completions, std::vector<std::unique_ptr<Call>> calls,
          const cpu::Grid& grid)
      : completions_(completions),
        calls_(std::move(calls)),
        unfinished_(calls_.size() + 1) {
    auto process = std::make_shared<cpu::ProcessBuffers>();
    process->request = calls_[0]->request;
    process->dtype = calls_[0]->dtype;
    process->reduce_op = calls_[0]->reduce_op;
    process->grid = grid;
    for (const auto& call : calls_) {
      process->inputs.push_back(call->input);
      process->outputs.push_back(call->output);
    }
    process_ = std::move(process);
  }

  const cpu::Grid& grid() const { return process_->grid; }
  const Call& call(int member) const { return *calls_[member]; }
  std::shared_ptr<const cpu::ProcessBuffers> process() const {
    return process_;
  }

  // Call it when a part has finished. All calls end together: XLA frees the
  // buffers of a rank when the rank's call is done, but the other parts use
  // these buffers too.
  void FinishPart(const Status& status) {
    if (NoteFinished(status)) CompleteAllBut(-1);
  }

  // Start calls it for `member`, after all parts have been started. If all
  // parts have finished, completes the calls of the other members, and returns
  // the status for the call of `member`.
  std::optional<Status> FinishStart(int member) {
    if (!NoteFinished(OkStatus())) return std::nullopt;
    CompleteAllBut(member);
    return status_;
  }

 private:
  bool NoteFinished(const Status& status) {
    std::lock_guard lock(mutex_);
    if (status_.ok()) status_ = status;
    return --unfinished_ == 0;
  }
  void CompleteAllBut(int member) {
    for (size_t i = 0; i < calls_.size(); ++i)
      if (static_cast<int>(i) != member)
        completions_->Run([done = std::move(calls_[i]->done),
                           status = status_] { done(status); });
  }

  Completions* completions_;
  std::vector<std::unique_ptr<Call>> calls_;
  std::shared_ptr<const cpu::ProcessBuffers> process_;
  std::mutex mutex_;
  size_t unfinished_;  // parts, and the start of the parts
  Status status_;      // the first error of a part
};

LevelCalls::LevelCalls(Completions* completions, StartCall start_call,
                       NoteWait note_wait, std::function<Status()> failed,
                       const Options& options)
    : completions_(completions),
      start_call_(std::move(start_call)),
      note_wait_(std::move(note_wait)),
      failed_(std::move(failed)),
      timeout_(options.timeout_s),
      past_caches_bytes_(options.tuning.past_caches_bytes),
      watcher_([this](const std::stop_token& stop) { Watch(stop); }) {}

LevelCalls::~LevelCalls() {
  watcher_.request_stop();
  watcher_.join();
  for (auto& [key, waiting] : waiting_) Fail(std::move(waiting), WasShutDown());
}

std::optional<Status> LevelCalls::Start(const std::vector<int32_t>& ranks,
                                        const cpu::Grid& grid,
                                        std::unique_ptr<Call> call) {
  const auto [process, self] = grid.Find(call->request.rank);
  std::vector<std::unique_ptr<Call>> arrived;
  {
    std::lock_guard lock(mutex_);
    const Key key{ranks[grid.At(process, 0)], call->identity};
    auto [found, first] = waiting_.try_emplace(key);
    Waiting& waiting = found->second;
    if (first) {
      for (int i = 0; i < grid.per_process; ++i)
        waiting.ranks.push_back(ranks[grid.At(process, i)]);
      waiting.calls.resize(grid.per_process);
      waiting.missing = grid.per_process;
      waiting.since = Clock::now();
      waiting.over = std::make_shared<std::atomic<bool>>(false);
    }
    call->submitted = Ticks();
    call->in_levels = true;
    waiting.calls[self] = std::move(call);
    if (--waiting.missing > 0) {
      if (waiting_.size() == 1) wake_.notify_one();
      return std::nullopt;
    }
    *waiting.over = true;
    arrived = std::move(waiting.calls);
    waiting_.erase(found);
  }
  auto running =
      std::make_shared<Running>(completions_, std::move(arrived), grid);
  for (int member = 0; member < grid.per_process; ++member)
    StartPart(running, process, member, ranks);
  return running->FinishStart(self);
}

void LevelCalls::StartPart(const std::shared_ptr<Running>& running, int process,
                           int member, const std::vector<int32_t>& ranks) {
  const cpu::Grid& grid = running->grid();
  auto buffers = std::make_shared<const cpu::MemberBuffers>(
      running->process(), member, past_caches_bytes_);
  // A part may be empty. The rank calls the collective of its part even then,
  // so that the stall detector knows that the rank waits.
  plan::Request request = buffers->RequestOf(process);
  if (grid.processes == 1) {
    const uint64_t bytes = request.count * request.element_bytes;
    return completions_->Run([running, buffers, bytes] {
      for (uint64_t from = 0; from < bytes; from += kPieceBytes)
        buffers->Copy(from, from, std::min(kPieceBytes, bytes - from));
      running->FinishPart(OkStatus());
    });
  }
  auto call = std::make_unique<Call>(running->call(member));
  call->request = std::move(request);
  call->buffers = std::move(buffers);
  call->done = [running](const Status& status) { running->FinishPart(status); };
  std::vector<int32_t> members;
  for (int p = 0; p < grid.processes; ++p)
    members.push_back(ranks[grid.At(p, member)]);
  const int32_t rank = members[process];
  if (auto status = start_call_(rank, members, std::move(call)))
    running->FinishPart(*status);
}

void LevelCalls::Watch(const std::stop_token& stop) {
  prctl(PR_SET_NAME, "jax_cxl_levels");
  std::unique_lock lock(mutex_);
  for (;;) {
    wake_.wait(lock, stop, [this] { return !waiting_.empty(); });
    wake_.wait_for(lock, stop, kWatchInterval, [] { return false; });
    if (stop.stop_requested()) return;
    const Clock::time_point now = Clock::now();
    for (auto next = waiting_.begin(); next != waiting_.end();) {
      auto entry = next++;
      const Status status = Expired(entry->second, now);
      if (status.ok()) {
        NoteWaits(&entry->second);
        continue;
      }
      Fail(std::move(entry->second), status);
      waiting_.erase(entry);
    }
  }
}

// Tells the endpoints of the ranks that their calls wait for other ranks of the
// process. Only the watcher does this, from time to time, so most calls are
// complete before it sees them.
void LevelCalls::NoteWaits(Waiting* waiting) {
  const size_t there = waiting->calls.size() - waiting->missing;
  if (waiting->noted == there) return;
  waiting->noted = there;
  for (size_t i = 0; i < waiting->calls.size(); ++i) {
    const Call* call = waiting->calls[i].get();
    if (call == nullptr) continue;
    auto seen = std::make_shared<Call>(*call);
    seen->done = nullptr;
    note_wait_(waiting->ranks[i],
               {waiting->ranks, std::move(seen), waiting->over});
  }
}

Status LevelCalls::Expired(const Waiting& waiting,
                           Clock::time_point now) const {
  Status status = failed_();
  if (!status.ok() || now - waiting.since <= timeout_) return status;
  const auto there = std::ranges::find_if(
      waiting.calls, [](const auto& call) { return call != nullptr; });
  const auto absent = std::ranges::find_if(
      waiting.calls, [](const auto& call) { return call == nullptr; });
  const int32_t rank = waiting.ranks[absent - waiting.calls.begin()];
  return Error(Code::kDeadlineExceeded, DescribeText(**there), ": rank ", rank,
               " of this process did not start the call within ",
               timeout_.count(),
               " s; look at what that rank does (python -m jax_cxl status), or "
               "raise JAX_CXL_TIMEOUT")
      .With("rank", rank);
}

void LevelCalls::Fail(Waiting waiting, const Status& status) {
  *waiting.over = true;
  for (auto& call : waiting.calls)
    if (call != nullptr)
      completions_->Run(
          [done = std::move(call->done), status] { done(status); });
}

}  // namespace jax_cxl::comm
