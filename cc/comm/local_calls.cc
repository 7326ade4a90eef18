#include "cc/comm/local_calls.h"

#include <sys/prctl.h>

#include <algorithm>
#include <latch>

#include "cc/engine/cpu/copy.h"
#include "cc/engine/cpu/kernels.h"

namespace jax_cxl::comm {
namespace {

using plan::Op;

// Up to this many bytes of all outputs the last member does all parts: passing
// them on to other threads would take longer.
constexpr uint64_t kAloneBytes = uint64_t{64} << 10;
// How often the watcher looks whether the job has failed.
constexpr auto kWatchInterval = std::chrono::milliseconds(50);

uint64_t BlockBytes(const plan::Request& request) {
  return request.count * request.element_bytes;
}

}  // namespace

bool RunsInProcess(Op op) {
  return op == Op::kReduceScatter || op == Op::kAllGather ||
         op == Op::kAllToAll || op == Op::kScatter;
}

void RunPart(const std::vector<std::unique_ptr<Call>>& calls, size_t member,
             uint64_t past_caches_bytes) {
  const Call& own = *calls[member];
  const uint64_t block = BlockBytes(own.request);
  const auto copy = plan::OutputBytes(own.request) >= past_caches_bytes
                        ? cpu::CopyPastCaches
                        : cpu::CopyFromPool;
  switch (own.request.op) {
    case Op::kReduceScatter: {
      std::vector<const std::byte*> sources;
      for (const auto& call : calls)
        sources.push_back(call->input + member * block);
      cpu::Reduce(own.dtype, own.reduce_op, sources, own.output,
                  own.request.count);
      break;
    }
    case Op::kAllGather:
      for (size_t i = 0; i < calls.size(); ++i)
        copy(own.output + i * block, calls[i]->input, block);
      break;
    case Op::kAllToAll:
      for (size_t i = 0; i < calls.size(); ++i)
        copy(own.output + i * block, calls[i]->input + member * block, block);
      break;
    case Op::kScatter:
      copy(own.output, calls[own.request.root]->input + member * block, block);
      break;
    default:
      break;
  }
}

LocalCalls::LocalCalls(Completions* completions, std::function<Status()> failed,
                       const Options& options)
    : completions_(completions),
      failed_(std::move(failed)),
      timeout_(options.timeout_s),
      past_caches_bytes_(options.tuning.past_caches_bytes),
      watcher_([this] { Watch(); }) {}

LocalCalls::~LocalCalls() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  watcher_.join();
  for (auto& [key, waiting] : waiting_)
    Fail(std::move(waiting),
         Error(Code::kFailedPrecondition,
               "jax_cxl was shut down while the call was under way"));
}

std::optional<Status> LocalCalls::Start(const std::vector<int32_t>& members,
                                        std::unique_ptr<Call> call) {
  const plan::Request& request = call->request;
  if (!RunsInProcess(request.op) ||
      (request.op == Op::kReduceScatter &&
       !cpu::CanReduce(call->dtype, call->reduce_op)))
    return Error(Code::kUnimplemented, DescribeText(*call),
                 " cannot run within a process");
  const auto self = static_cast<size_t>(request.rank);
  const uint64_t bytes = members.size() * plan::OutputBytes(request);
  std::vector<std::unique_ptr<Call>> arrived;
  {
    std::lock_guard lock(mutex_);
    const Key key{members.front(), call->identity};
    auto [found, first] = waiting_.try_emplace(key);
    Waiting& waiting = found->second;
    if (first) {
      waiting.members = members;
      waiting.calls.resize(members.size());
      waiting.missing = members.size();
      waiting.since = Clock::now();
    }
    waiting.calls[self] = std::move(call);
    if (--waiting.missing > 0) {
      if (waiting_.size() == 1) wake_.notify_one();
      return std::nullopt;
    }
    arrived = std::move(waiting.calls);
    waiting_.erase(found);
  }
  if (bytes <= kAloneBytes) {
    for (size_t i = 0; i < arrived.size(); ++i)
      RunPart(arrived, i, past_caches_bytes_);
    for (size_t i = 0; i < arrived.size(); ++i)
      if (i != self)
        completions_->Run(
            [done = std::move(arrived[i]->done)] { done(OkStatus()); });
    return OkStatus();
  }
  struct Running {
    explicit Running(std::vector<std::unique_ptr<Call>> parts)
        : calls(std::move(parts)),
          unfinished(static_cast<ptrdiff_t>(calls.size())) {}
    std::vector<std::unique_ptr<Call>> calls;
    std::latch unfinished;
  };
  const size_t parts = arrived.size();
  auto running = std::make_shared<Running>(std::move(arrived));
  for (size_t i = 0; i < parts; ++i)
    completions_->Run([running, i, past_caches_bytes = past_caches_bytes_] {
      RunPart(running->calls, i, past_caches_bytes);
      // XLA frees a member's input when its call is done.
      running->unfinished.arrive_and_wait();
      running->calls[i]->done(OkStatus());
    });
  return std::nullopt;
}

void LocalCalls::Watch() {
  prctl(PR_SET_NAME, "jax_cxl_local");
  std::unique_lock lock(mutex_);
  while (!stop_) {
    wake_.wait(lock, [this] { return stop_ || !waiting_.empty(); });
    wake_.wait_for(lock, kWatchInterval, [this] { return stop_; });
    const Clock::time_point now = Clock::now();
    for (auto next = waiting_.begin(); next != waiting_.end();) {
      auto entry = next++;
      const Status status = Expired(entry->second, now);
      if (status.ok()) continue;
      Fail(std::move(entry->second), status);
      waiting_.erase(entry);
    }
  }
}

Status LocalCalls::Expired(const Waiting& waiting,
                           Clock::time_point now) const {
  Status status = failed_();
  if (!status.ok() || now - waiting.since <= timeout_) return status;
  const auto there = std::ranges::find_if(
      waiting.calls, [](const auto& call) { return call != nullptr; });
  const auto absent = std::ranges::find_if(
      waiting.calls, [](const auto& call) { return call == nullptr; });
  const int32_t rank = waiting.members[absent - waiting.calls.begin()];
  return Error(Code::kDeadlineExceeded, DescribeText(**there), ": rank ", rank,
               " of this process did not start the call within ",
               timeout_.count(), " s")
      .With("rank", rank);
}

void LocalCalls::Fail(Waiting waiting, const Status& status) {
  for (auto& call : waiting.calls)
    if (call != nullptr)
      completions_->Run(
          [done = std::move(call->done), status] { done(status); });
}

}  // namespace jax_cxl::comm
