// The checking side of DeviceChannel: the progress of calls, the members that
// they wait for, and the errors that end them. Another thread runs the
// enqueuing side.

#include <algorithm>
#include <atomic>

#include "cc/gpu/cuda/channel/device_channel.h"
#include "cc/gpu/cuda/channel/device_channel_reading.h"
#include "cc/plan/slices.h"

namespace jax_cxl::comm {

// Adds the durations of the copy-engine calls before call number `finished` to
// `copying_s_`. Calls of a series overlap. The time during which two calls
// overlap counts only once. Requires the mutex.
void DeviceChannel::AddTimes(uint64_t finished) {
  while (!timed_copies_.empty() && timed_copies_.front().call < finished) {
    const cuda::CopyTimes times = timed_copies_.front().times;
    timed_copies_.pop_front();
    float ms = 0, since_last_ms = 0;
    if (cudaEventElapsedTime(&ms, times.begin, times.end) != cudaSuccess)
      ms = 0;
    if (counted_times_) {
      if (cudaEventElapsedTime(&since_last_ms, counted_times_->end,
                               times.end) == cudaSuccess)
        ms = std::min(ms, since_last_ms);
      free_times_.push_back(*counted_times_);
    }
    counted_times_ = times;
    copying_s_ += ms * 1e-3;
  }
}

// Drops the calls that the device has finished. Returns the first unfinished
// call, or null if there is none. The call's address stays valid until a later
// check.
const DeviceChannel::Enqueued* DeviceChannel::OldestUnderWay(
    uint64_t finished) {
  std::lock_guard lock(mutex_);
  while (!under_way_.empty() && calls_ - under_way_.size() < finished)
    under_way_.pop_front();
  return under_way_.empty() ? nullptr : &under_way_.front();
}

Status DeviceChannel::Check(Clock::time_point now) {
  if (!connected_) return OkStatus();
  const uint64_t finished = Read(status_.get()->finished);
  Status status = CheckCalls(now, finished);
  uint64_t compared = journal_->compared_by_all();
  if (taking_back_) {
    taking_back_->TellFinished(finished);
    // A member that has taken its memory back no longer has a journal in it, so
    // the comparison above may be wrong. But such a member had finished all
    // calls, so the members agreed about them.
    if (taking_back_->taken()) {
      status = OkStatus();
      compared = finished;
    }
  }
  std::lock_guard lock(mutex_);
  AddTimes(finished);
  recorded_->Advance(compared, finished);
  if (!status.ok()) recorded_->Fail(finished, status);
  return status;
}

Status DeviceChannel::CheckCalls(Clock::time_point now, uint64_t finished) {
  uint64_t enqueued;
  {
    std::lock_guard lock(mutex_);
    enqueued = calls_;
  }
  CXL_RETURN_IF_ERROR(journal_->Compare(enqueued));
  const Enqueued* oldest = OldestUnderWay(finished);
  if (oldest == nullptr) return OkStatus();

  cuda::DeviceStatus& status = *status_.get();
  const uint64_t started = Read(status.started);
  DeviceWait wait;
  wait.call = &oldest->call;
  wait.begun = started > finished;
  wait.missing = journal_->Missing(finished);
  wait.at_work = AtWork(*oldest);
  wait.progress = ProgressOf(finished, started);
  wait.waiting_for = WaitingFor(finished, wait.progress != progress_);
  progress_ = wait.progress;
  if (wait.begun) {
    std::lock_guard lock(mutex_);
    const int member = DeviceWaits::WaitingFor(wait);
    recorded_->Wait(finished,
                    member < 0 ? -1 : connection_.group().members[member]);
  }
  const auto fault = static_cast<cuda::DeviceFault>(Read(status.fault));
  // Every member finds a fault in the slices itself. A peer that was faster may
  // have given up by now. So report this fault, and not that the peer has given
  // up.
  if (fault == cuda::DeviceFault::kSlices)
    return plan::SliceError(status.slice_fault);
  CXL_RETURN_IF_ERROR(waits_.Check(wait, now));

  const int member = static_cast<int>(
      std::min<uint64_t>(Read(status.fault_member), members_count() - 1));
  if (fault == cuda::DeviceFault::kMismatch) {
    // Compare again, because the journals describe the first call that differs.
    // A journal may have been written after the comparison above, but before
    // the device reported its fault.
    CXL_RETURN_IF_ERROR(journal_->Compare(enqueued));
    return waits_.Mismatch(oldest->call, member);
  }
  if (fault == cuda::DeviceFault::kTimeout)
    return waits_.Timeout(oldest->call, member);
  return OkStatus();
}

// Returns a number that changes whenever the device makes progress.
uint64_t DeviceChannel::ProgressOf(uint64_t finished, uint64_t started) const {
  // In the pool, a relay rings only the first word for publications and the
  // first word for releases.
  const int words = relay_ != nullptr
                        ? 1
                        : std::max(static_cast<int>(options_.shape.blocks),
                                   cuda::CopyEngine::kPipelines);
  return finished + started + connection_.Progress(words);
}

// Returns the other members that have not finished the call.
std::vector<int> DeviceChannel::AtWork(const Enqueued& enqueued) const {
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

// Returns the member for which the first unfinished call waits, or -1 if it is
// unknown.
int DeviceChannel::WaitingFor(uint64_t finished, bool moved) const {
  {
    std::lock_guard lock(mutex_);
    const bool copies =
        !timed_copies_.empty() && timed_copies_.front().call == finished;
    if (!copies) {
      const auto said = static_cast<int>(Read(status_.get()->waiting_for));
      return said > members_count() ? -1 : said - 1;
    }
  }
  // Copies do not report which member they wait for. If they make no progress,
  // they most likely wait for the member that is furthest behind.
  return moved ? -1 : LastMember();
}

int DeviceChannel::LastMember() const {
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

void DeviceChannel::Abort() {
  if (status_ == nullptr) return;
  std::atomic_ref(status_.get()->abort).store(1, std::memory_order_release);
  if (channel_relay_ != nullptr) channel_relay_->Stop();
  const uint64_t finished = Read(status_.get()->finished);
  std::lock_guard lock(mutex_);
  if (!timed_copies_.empty() && timed_copies_.back().call >= finished)
    copy_engine_->Stop();
}

Stats DeviceChannel::stats() {
  std::lock_guard lock(mutex_);
  Stats stats = stats_;
  stats.calls = calls_ - parts_of_calls_;
  if (status_ == nullptr) return stats;
  stats.bytes_published += Read(status_.get()->row_bytes.published);
  stats.bytes_retrieved += Read(status_.get()->row_bytes.retrieved);
  AddTimes(Read(status_.get()->finished));
  stats.seconds = Read(status_.get()->busy_ns) * 1e-9 + copying_s_;
  return stats;
}

}  // namespace jax_cxl::comm
