// The checking side of DeviceChannel: the progress of calls, the members that
// they wait for, and the errors that end them. Another thread runs the
// enqueuing side.

#include <atomic>
#include <cstdio>

#include "cc/base/text.h"
#include "cc/comm/cuda/device_channel.h"
#include "cc/comm/cuda/device_channel_reading.h"
#include "cc/plan/slices.h"

namespace jax_cxl::comm {
namespace {

// How long a device may take to end its calls after a peer's process has ended.
constexpr double kLastCallS = 0.2;

}  // namespace

// Requires the mutex.
void DeviceChannel::AddTimes(uint64_t finished) {
  while (!timed_copies_.empty() && timed_copies_.front().call < finished) {
    const cuda::CopyTimes times = timed_copies_.front().times;
    timed_copies_.pop_front();
    free_times_.push_back(times);
    float ms = 0;
    if (cudaEventElapsedTime(&ms, times.begin, times.end) == cudaSuccess)
      copying_s_ += ms * 1e-3;
  }
}

void DeviceChannel::RecordWait(uint64_t call, int member) {
  std::lock_guard lock(mutex_);
  recorded_->Wait(call, connection_.group().members[member]);
}

std::string DeviceChannel::InCall(uint64_t call) const {
  std::lock_guard lock(mutex_);
  if (call >= calls_ || call + cuda::kJournal < calls_) return "a collective";
  const Enqueued& enqueued = journal_[call % cuda::kJournal];
  return DescribeText(enqueued.descriptor, enqueued.name);
}

// Compares the calls that the members' hosts have enqueued. The device has
// refused to read the data of another call, and this function describes the two
// calls.
Status DeviceChannel::CompareJournals() {
  uint64_t enqueued;
  {
    std::lock_guard lock(mutex_);
    enqueued = calls_;
  }
  if (compared_ + cuda::kJournal / 2 < enqueued)
    compared_ = enqueued - cuda::kJournal / 2;
  const int size = static_cast<int>(connection_.members().size());
  for (; compared_ < enqueued; met_ = ++compared_) {
    const uint64_t at = compared_ % cuda::kJournal;
    const int self = connection_.group().self;
    const pool::CallDescriptor mine =
        connection_.control(self)->journal[at].descriptor;
    for (int member = 0; member < size; ++member) {
      if (member == self) continue;
      const cuda::JournalEntry& entry =
          connection_.control(member)->journal[at];
      const uint64_t ready = connection_.doorbells().Read(&entry.ready);
      if (ready < compared_ + 1) return OkStatus();  // not enqueued there yet
      const cuda::JournalEntry theirs = pool_->coherence().AcquireCopy(entry);
      // Overwritten: the member is far ahead, and has passed this call.
      if (connection_.doorbells().Read(&entry.ready) != compared_ + 1) continue;
      if (theirs.descriptor == mine) continue;
      const auto& ranks = connection_.group().members;
      return Error(Code::kMismatch,
                   "the ranks disagree about a collective: rank ", ranks[self],
                   " calls ", InCall(compared_), "; rank ", ranks[member],
                   " calls ",
                   DescribeText(theirs.descriptor, PrintableText(theirs.name)));
    }
  }
  return OkStatus();
}

Status DeviceChannel::Check(Clock::time_point now) {
  if (!connected_) return OkStatus();
  const uint64_t finished = Read(status_.get()->finished);
  Status status = CheckCalls(now, finished);
  std::lock_guard lock(mutex_);
  AddTimes(finished);
  recorded_->Advance(met_, finished);
  if (!status.ok()) recorded_->Fail(finished, status);
  return status;
}

Status DeviceChannel::CheckCalls(Clock::time_point now, uint64_t finished) {
  uint64_t enqueued;
  {
    std::lock_guard lock(mutex_);
    enqueued = calls_;
  }
  cuda::DeviceStatus& status = *status_.get();
  const uint64_t started = Read(status.started);
  CXL_RETURN_IF_ERROR(CompareJournals());
  if (finished != seen_finished_ || started != seen_started_) {
    seen_finished_ = finished;
    seen_started_ = started;
    moved_ = now;
  }
  if (finished >= enqueued) return OkStatus();

  const auto fault = static_cast<cuda::DeviceFault>(Read(status.fault));
  // All members find this fault. So it comes before what the others say.
  if (fault == cuda::DeviceFault::kSlices)
    return plan::SliceError(status.slice_fault);

  const std::vector<int32_t>& ranks = connection_.group().members;
  const int self = connection_.group().self;
  const std::string me = peers_->Name(ranks[self]);
  for (int32_t rank : ranks) CXL_RETURN_IF_ERROR(peers_->GaveUp(rank));
  for (size_t member = 0; member < ranks.size(); ++member) {
    if (static_cast<int>(member) == self) continue;
    Status alive = peers_->Alive(ranks[member]);
    if (alive.ok()) continue;
    // The peer may have ended after it sent everything that this device needs.
    if (!gone_since_) gone_since_ = now;
    if (Seconds(now - *gone_since_) < kLastCallS) return OkStatus();
    return Error(alive.code(), alive.message(), "; ", me, " was in ",
                 InCall(finished));
  }
  const uint32_t about = Read(status.fault_member);
  const std::string other =
      about < ranks.size() ? peers_->Name(ranks[about]) : "a peer";
  if (fault == cuda::DeviceFault::kMismatch)
    return Error(Code::kMismatch, other, " is in another collective than ", me,
                 ", which is in ", InCall(finished));
  if (fault == cuda::DeviceFault::kTimeout)
    return Error(Code::kDeadlineExceeded, me, " waited in vain for ", other,
                 " in ", InCall(finished));

  // A call behind other calls has not begun to wait.
  if (started == finished) return OkStatus();
  const double waited = Seconds(now - moved_);
  const int waiting_for = WaitingFor(finished, waited);
  if (waiting_for < 0) return OkStatus();
  RecordWait(finished, waiting_for);
  const std::string late = peers_->Name(ranks[waiting_for]);
  if (waited > options_.timeout_s)
    return Error(Code::kDeadlineExceeded, me, " has waited ",
                 static_cast<int>(waited), " s in ", InCall(finished), " for ",
                 late, "; gave up after JAX_CXL_TIMEOUT = ", options_.timeout_s,
                 " s");
  if (waited > options_.warn_after_s &&
      Seconds(now - last_warning_) > options_.warn_after_s) {
    last_warning_ = now;
    std::fprintf(stderr, "jax_cxl: warning: %s has waited %d s in %s for %s\n",
                 me.c_str(), static_cast<int>(waited), InCall(finished).c_str(),
                 late.c_str());
  }
  return OkStatus();
}

// Returns the member for which the first unfinished call waits, or -1.
int DeviceChannel::WaitingFor(uint64_t finished, double waited_s) const {
  {
    std::lock_guard lock(mutex_);
    const bool copies =
        !timed_copies_.empty() && timed_copies_.front().call == finished;
    if (!copies) {
      const uint32_t said = Read(status_.get()->waiting_for);
      return said > connection_.members().size() ? -1
                                                 : static_cast<int>(said) - 1;
    }
  }
  // Copies do not report for whom they wait. No copies take this long, so they
  // must be waiting, and the member that is behind all others comes first.
  constexpr double kLongWaitS = 0.1;
  if (waited_s < kLongWaitS) return -1;
  int last = -1;
  uint64_t least = 0;
  for (int member = 0; member < static_cast<int>(connection_.members().size());
       ++member) {
    if (member == connection_.group().self) continue;
    const cuda::DeviceControl& control = *connection_.control(member);
    uint64_t rounds = connection_.doorbells().Read(&control.ended.word);
    for (int index = 0; index < cuda::CopyEngine::kPipelines; ++index)
      rounds += connection_.doorbells().Read(&control.send[index].published) +
                connection_.doorbells().Read(&control.released[index].word);
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
  stats.calls = calls_;
  if (status_ == nullptr) return stats;
  AddTimes(Read(status_.get()->finished));
  stats.seconds = Read(status_.get()->busy_ns) * 1e-9 + copying_s_;
  return stats;
}

}  // namespace jax_cxl::comm
