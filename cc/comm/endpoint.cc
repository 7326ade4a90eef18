#include "cc/comm/endpoint.h"

#include <sys/prctl.h>

#include <utility>

namespace jax_cxl::comm {
namespace {

// How long StartCall polls for the other ranks before the endpoint's thread
// takes over. Waking that thread costs 40 us if its core sleeps, and waking a
// thread for the completion costs as much again.
constexpr auto kInlineTime = std::chrono::microseconds(100);
// Calls that move more bytes go to the endpoint's thread, so that XLA's threads
// keep computing. Copying this many bytes takes about 100 us, several times as
// long as handing the call to the other thread.
constexpr uint64_t kInlineBytes = uint64_t{2} << 20;
// Reading the clock costs as much as a poll, and checking peers costs one cache
// line per peer. So neither happens on every poll.
constexpr int kPollsPerTime = 8;
constexpr int kPollsPerCheck = 64;
constexpr int kPollsPerSuspicion = 8;

// Returns the bytes that this rank reads and writes, in its buffers and the
// pool. In an operation that moves rows, counts only the rows that move.
uint64_t MovedBytes(const Call& call) {
  if (call.rows != nullptr)
    return call.rows->published_bytes() + call.rows->taken_bytes();
  return plan::InputBytes(call.request) + plan::OutputBytes(call.request);
}

}  // namespace

Endpoint::Endpoint(pool::Pool* pool, Peers* peers, Completions* completions,
                   const Options& options, int rank)
    : pool_(pool),
      peers_(peers),
      completions_(completions),
      options_(options),
      rank_(rank),
      arena_(*pool, rank),
      recorder_(pool, rank),
      stall_detector_(pool, peers, rank),
      channels_(pool, peers, &recorder_, &arena_, options),
      worker_([this] { Work(); }) {}

Endpoint::~Endpoint() {
  {
    std::scoped_lock lock(progress_mutex_, inbox_mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  worker_.join();
  std::lock_guard lock(progress_mutex_);
  // Set `failed_` first, so that Fail tells the other ranks nothing: if they
  // have to know, Leave has told them.
  failed_ = WasShutDown();
  Fail(failed_);
}

void Endpoint::Leave(const std::string& reason, bool program_ends) {
  std::lock_guard lock(progress_mutex_);
  channels_.ForEach([&](Channel* channel) {
    if (channel->idle() || !failed_.ok()) return;
    peers_->GiveUp(rank_,
                   Error(Code::kPeerLost, "it shut down with a call under way",
                         reason.empty() ? "" : ": ", reason)
                       .With(peers_->Identity(rank_)));
  });
  peers_->Leave(rank_, recorder_.calls(), reason, program_ends);
}

std::optional<Status> Endpoint::StartCall(const std::vector<int32_t>& members,
                                          std::unique_ptr<Call> call) {
  const Call* submitted = call.get();
  const bool small = MovedBytes(*call) <= kInlineBytes;
  ++pending_;
  std::unique_lock progress(progress_mutex_, std::defer_lock);
  if (small && progress.try_lock()) {
    inline_call_ = submitted;
    Accept(members, std::move(call));
    if (std::optional<Status> status = TryInline()) return status;
    progress.unlock();
  } else {
    std::lock_guard lock(inbox_mutex_);
    inbox_.emplace_back(members, std::move(call));
    ++arrived_;
  }
  WakeWorker();
  return std::nullopt;
}

void Endpoint::WakeWorker() {
  {
    // The worker reads pending_ while it holds this mutex, so it cannot miss
    // the change.
    std::lock_guard lock(inbox_mutex_);
  }
  wake_.notify_one();
}

void Endpoint::AddLocalWait(LocalWait wait) {
  ++pending_;
  {
    std::lock_guard lock(progress_mutex_);
    stall_detector_.NoteProgress();
    local_waits_.push_back(std::move(wait));
  }
  WakeWorker();
}

void Endpoint::Abort(const Status& status) {
  std::lock_guard lock(progress_mutex_);
  Fail(status);
}

std::optional<Status> Endpoint::TryInline() {
  inline_backoff_.Reset();
  // `moved` is true at first, so that the first reading of the clock counts as
  // the time of the last progress.
  bool moved = true;
  Clock::time_point since;
  for (int polls = 0; !inline_status_;) {
    if (Progress()) {
      moved = true;
      inline_backoff_.Reset();
      continue;
    }
    if (++polls % kPollsPerTime == 0) {
      const Clock::time_point now = Clock::now();
      if (std::exchange(moved, false)) since = now;
      if (now - since > kInlineTime) break;
    }
    inline_backoff_.Pause();
  }
  inline_call_ = nullptr;
  return std::exchange(inline_status_, {});
}

void Endpoint::Work() {
  const OwnThread own;
  // The name that top and /proc show.
  prctl(PR_SET_NAME, "jax_cxl");
  // By default, the kernel may prolong each sleep by 50 us (timer slack). That
  // is too much for this thread, which sleeps for tens of microseconds.
  prctl(PR_SET_TIMERSLACK, 1000UL, 0UL, 0UL, 0UL);
  Backoff backoff;
  for (;;) {
    if (pending_ == 0) {
      backoff.Reset();
      std::unique_lock lock(inbox_mutex_);
      wake_.wait(lock, [this] { return stop_ || pending_ > 0; });
    }
    bool moved;
    {
      std::lock_guard lock(progress_mutex_);
      if (stop_) return;
      moved = Progress();
    }
    if (moved)
      backoff.Reset();
    else
      backoff.Pause();
  }
}

bool Endpoint::Progress() {
  AcceptInbox();
  if (ProgressChannels()) {
    stall_detector_.NoteProgress();
    polls_without_check_ = 0;
    return true;
  }
  const int polls =
      stall_detector_.suspects_stall() ? kPollsPerSuspicion : kPollsPerCheck;
  if (++polls_without_check_ % polls == 0) CheckPeers();
  return false;
}

bool Endpoint::ProgressChannels() {
  bool moved = false;
  Status status;
  for (Channel* channel : channels_.open()) {
    if (channel->idle()) continue;
    Result<bool> progress = channel->Progress(&finished_);
    if (!progress.ok()) {
      status = progress.status();
      break;
    }
    moved |= *progress;
  }
  const bool finished = !finished_.empty();
  Finish();
  Fail(status);
  if (finished) OpenWaitingChannels();
  return moved;
}

void Endpoint::AcceptInbox() {
  if (arrived_ == 0) return;
  std::unique_lock lock(inbox_mutex_);
  auto arrived = std::exchange(inbox_, {});
  arrived_ = 0;
  lock.unlock();
  for (auto& [members, call] : arrived) Accept(members, std::move(call));
}

void Endpoint::Accept(const std::vector<int32_t>& members,
                      std::unique_ptr<Call> call) {
  call->submitted = Ticks();
  ++stats_.calls;
  if (under_way_++ == 0) busy_since_ = call->submitted;
  Status status = failed_;
  if (status.ok()) {
    Result<Channel*> channel = ChannelFor(members);
    status = channel.status();
    if (status.ok()) {
      stall_detector_.NoteProgress();
      recorder_.Record(call.get(), (*channel)->key());
      status = (*channel)->AddCall(call);
      if (status.ok()) return;
    }
  }
  finished_.push_back({std::move(call), status});
  Finish();
  if (failed_.ok()) Fail(status);
}

Result<Group> Endpoint::GroupOf(const std::vector<int32_t>& members) const {
  Group group{members, -1};
  for (size_t i = 0; i < members.size(); ++i) {
    if (members[i] < 0 || members[i] >= pool_->world_size())
      return Error(Code::kInvalidArgument, "rank ", members[i],
                   " does not exist: the pool has ", pool_->world_size(),
                   " ranks; use only devices of this job");
    if (members[i] == rank_) group.self = static_cast<int>(i);
  }
  if (group.self < 0)
    return Error(Code::kInvalidArgument, "rank ", rank_,
                 " calls a collective in a group to which it does not belong; "
                 "please report this to jax_cxl");
  return group;
}

Result<Channel*> Endpoint::ChannelFor(const std::vector<int32_t>& members) {
  Channel* channel = channels_.Find(members);
  if (channel == nullptr) {
    CXL_ASSIGN_OR_RETURN(const Group group, GroupOf(members));
    CXL_ASSIGN_OR_RETURN(channel, channels_.Add(group));
  }
  CXL_RETURN_IF_ERROR(channels_.Use(channel));
  return channel;
}

void Endpoint::OpenWaitingChannels() {
  if (channels_.waiting().empty() || !failed_.ok()) return;
  Fail(channels_.OpenWaiting());
}

void Endpoint::CheckPeers() {
  OpenWaitingChannels();
  const Clock::time_point now = peers_->AwakeTime();
  std::vector<Channel*> busy(channels_.waiting().begin(),
                             channels_.waiting().end());
  for (Channel* channel : channels_.open())
    if (!channel->idle()) busy.push_back(channel);
  for (Channel* channel : busy) {
    Status status = channel->CheckPeers(now);
    if (status.ok()) continue;
    // Just before it ended, the peer may have done everything that was missing.
    // So try again before failing.
    if (!ProgressChannels()) Fail(status);
    return;
  }
  Fail(CheckStall(now, busy));
}

Status Endpoint::CheckStall(Clock::time_point now,
                            const std::vector<Channel*>& busy) {
  const size_t ended = std::erase_if(
      local_waits_, [](const LocalWait& wait) { return wait.over->load(); });
  pending_ -= static_cast<int>(ended);
  if (ended > 0) stall_detector_.NoteProgress();
  // A thread of the program is inside StartCall, so the process is not idle and
  // has not stalled.
  if (inline_call_ != nullptr) return OkStatus();
  std::vector<UnmatchedCall> calls;
  for (const Channel* channel : busy)
    calls.push_back(
        {&channel->members(), channel->unmatched(), channel->needed_pool()});
  for (const LocalWait& wait : local_waits_)
    calls.push_back({&wait.ranks, wait.call.get()});
  CXL_ASSIGN_OR_RETURN(const Call* failing,
                       stall_detector_.Check(now, calls, recorder_.calls()));
  if (failing == nullptr) return OkStatus();
  const uint64_t program = failing->program_hash;
  const uint32_t launch = failing->launch_number;
  const Status left_out = LeftOut(*failing);
  for (Channel* channel : busy)
    channel->EndLaunch(program, launch, left_out, &finished_);
  stall_detector_.NoteProgress();
  Finish();
  return OkStatus();
}

void Endpoint::Fail(const Status& status) {
  if (status.ok()) return;
  if (failed_.ok()) {
    failed_ = status;
    peers_->GiveUp(rank_, status);
  }
  channels_.ForEach(
      [this](Channel* channel) { channel->Fail(failed_, &finished_); });
  Finish();
  AcceptInbox();  // fails each new call, because failed_ is set
}

void Endpoint::Finish() {
  if (finished_.empty()) return;
  under_way_ -= static_cast<int>(finished_.size());
  pending_ -= static_cast<int>(finished_.size());
  const uint64_t now = Ticks();
  if (under_way_ == 0) busy_ticks_ += now - busy_since_;
  for (auto& [call, status] : finished_) {
    recorder_.Finish(call->number, status, now);
    if (call.get() == inline_call_) {
      inline_status_ = status;
      continue;
    }
    completions_->Run([done = std::move(call->done), status] { done(status); });
  }
  finished_.clear();
}

Stats Endpoint::stats() {
  std::lock_guard progress(progress_mutex_);
  // Convert each tick only once. The rate improves over time, but seconds that
  // were reported earlier must not change.
  stats_.seconds += tick_rate_.Seconds(std::exchange(busy_ticks_, 0));
  Stats stats = stats_;
  channels_.ForEach([&](const Channel* channel) {
    stats.bytes_published += channel->traffic().bytes_published;
    stats.bytes_retrieved += channel->traffic().bytes_retrieved;
  });
  return stats;
}

void Endpoint::AddOperations(std::map<std::string, RecordedOperation>* total) {
  for (const pool::OperationRecord& counted : recorder_.operations()) {
    RecordedOperation& sum = (*total)[counted.name];
    sum.name = counted.name;
    sum.calls += counted.calls;
    sum.bytes += counted.bytes;
    sum.waited += tick_rate_.Seconds(counted.waited);
    sum.worked += tick_rate_.Seconds(counted.worked);
    sum.failed += counted.failed;
  }
}

}  // namespace jax_cxl::comm
