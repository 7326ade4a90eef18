// The checking side of StreamChannel: the progress of calls, the members that
// they wait for, and the errors that end them. Another thread runs the
// enqueuing side.

#include <algorithm>
#include <optional>
#include <utility>

#include "cc/gpu/cuda/channel/stream_channel.h"

namespace jax_cxl::comm {

// Drops the calls that the device has finished, and adds the durations of those
// by the copy engines to `copying_s_`. Calls of a series overlap. The time
// during which two calls overlap counts only once. Requires the mutex.
void StreamChannel::DropFinished(uint64_t finished) {
  for (; !under_way_.empty() && calls_ - under_way_.size() < finished;
       under_way_.pop_front()) {
    std::optional<cuda::CopyTimes>& times = under_way_.front().times;
    if (!times) continue;
    float ms = 0, since_last_ms = 0;
    if (cudaEventElapsedTime(&ms, times->begin.get(), times->end.get()) !=
        cudaSuccess)
      ms = 0;
    if (counted_times_) {
      if (cudaEventElapsedTime(&since_last_ms, counted_times_->end.get(),
                               times->end.get()) == cudaSuccess)
        ms = std::min(ms, since_last_ms);
      free_times_.push_back(*std::move(counted_times_));
    }
    counted_times_ = std::move(times);
    copying_s_ += ms * 1e-3;
  }
}

Status StreamChannel::Check(Clock::time_point now) {
  if (!connected_) return OkStatus();
  const uint64_t finished = Read(status().finished);
  Status problem = CheckCalls(now, finished);
  uint64_t compared = journal_->compared_by_all();
  if (taking_back_) {
    taking_back_->TellFinished(finished);
    // A member that has taken its memory back no longer has a journal in it, so
    // the comparison above may be wrong. But such a member had finished all
    // calls, so the members agreed about them.
    if (taking_back_->taken()) {
      problem = OkStatus();
      compared = finished;
    }
  }
  std::lock_guard lock(mutex_);
  recorded_->Advance(compared, finished);
  if (!problem.ok()) recorded_->Fail(finished, problem);
  return problem;
}

Status StreamChannel::CheckCalls(Clock::time_point now, uint64_t finished) {
  uint64_t enqueued;
  // The first unfinished call, whose address stays valid until DropFinished.
  const Enqueued* oldest;
  {
    std::lock_guard lock(mutex_);
    DropFinished(finished);
    enqueued = calls_;
    oldest = under_way_.empty() ? nullptr : &under_way_.front();
  }
  CXL_RETURN_IF_ERROR(journal_->Compare(enqueued));
  if (oldest == nullptr) return OkStatus();
  DeviceWait wait = WaitOf(oldest->call, finished);
  wait.at_work = AtWork(*oldest);
  // Copies do not report which member they wait for. If they make no progress,
  // they most likely wait for the member that is furthest behind.
  const bool moved = std::exchange(progress_, wait.progress) != wait.progress;
  if (oldest->times) wait.waiting_for = moved ? -1 : LastMember();
  return CheckWait(wait, finished, enqueued, now);
}

// Returns the other members that have not finished the call.
std::vector<int> StreamChannel::AtWork(const Enqueued& enqueued) const {
  std::vector<int> members;
  for (int member = 0; member < members_count(); ++member) {
    const cuda::DeviceControl& control = *connection_.control(member);
    const uint64_t rounds = connection_.doorbells().Read(
        enqueued.flagged ? &control.flagged.released : &control.ended.word);
    if (member != connection_.group().self && rounds < enqueued.end)
      members.push_back(member);
  }
  return members;
}

int StreamChannel::LastMember() const {
  const pool::Doorbells& doorbells = connection_.doorbells();
  int last = -1;
  uint64_t least = 0;
  for (int member = 0; member < members_count(); ++member) {
    if (member == connection_.group().self) continue;
    const cuda::DeviceControl& control = *connection_.control(member);
    uint64_t rounds = doorbells.Read(&control.ended.word);
    for (int index = 0; index < cuda::CopyEngine::kPipelines; ++index)
      rounds += doorbells.Read(&control.send[index].published) +
                doorbells.Read(&control.released[index].word);
    if (last >= 0 && rounds >= least) continue;
    last = member;
    least = rounds;
  }
  return last;
}

void StreamChannel::Abort() {
  if (buffers_.status == nullptr) return;
  GpuChannel::Abort();
  std::lock_guard lock(mutex_);
  DropFinished(Read(status().finished));
  if (std::ranges::any_of(under_way_, [](const Enqueued& enqueued) {
        return enqueued.times.has_value();
      }))
    copy_engine_->Stop();
}

Stats StreamChannel::stats() {
  std::lock_guard lock(mutex_);
  Stats stats = stats_;
  stats.calls = calls_ - parts_of_calls_;
  if (buffers_.status == nullptr) return stats;
  stats.bytes_published += Read(status().row_bytes.published);
  stats.bytes_retrieved += Read(status().row_bytes.retrieved);
  DropFinished(Read(status().finished));
  stats.seconds = Read(status().busy_ns) * 1e-9 + copying_s_;
  return stats;
}

}  // namespace jax_cxl::comm
