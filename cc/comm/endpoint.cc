#include "cc/comm/endpoint.h"

#include <sys/prctl.h>

#include <utility>

#include "cc/comm/backoff.h"

namespace jax_cxl::comm {
namespace {

// How long Submit tries before it hands over to the endpoint's thread: about
// what waking that thread costs.
constexpr auto kInlineTime = std::chrono::microseconds(20);
// Calls that move more are left to the endpoint's thread, so that XLA's own
// threads keep computing.
constexpr uint64_t kInlineBytes = uint64_t{256} << 10;
// Looking after peers costs a line a peer: not on every poll.
constexpr int kPollsPerCheck = 64;

}  // namespace

Endpoint::Endpoint(pool::Pool* pool, Peers* peers, Completions* completions,
                   const Options& options, int rank)
    : pool_(pool),
      peers_(peers),
      completions_(completions),
      options_(options),
      rank_(rank),
      arena_(*pool, rank),
      worker_([this] { Work(); }) {}

Endpoint::~Endpoint() {
  {
    std::lock_guard lock(inbox_mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  worker_.join();
  std::lock_guard lock(progress_mutex_);
  Fail(Error(Code::kFailedPrecondition,
             "jax_cxl was shut down while the call was under way"));
}

std::optional<Status> Endpoint::Submit(const std::vector<int32_t>& members,
                                       std::unique_ptr<Call> call) {
  const Call* submitted = call.get();
  const Clock::time_point start = Clock::now();
  call->submitted = start;
  const bool small =
      plan::InputBytes(call->request) + plan::OutputBytes(call->request) <=
      kInlineBytes;
  {
    std::lock_guard lock(inbox_mutex_);
    inbox_.emplace_back(members, std::move(call));
    ++stats_.calls;
    if (pending_++ == 0) busy_since_ = start;
  }
  if (small) {
    std::unique_lock progress(progress_mutex_, std::try_to_lock);
    if (progress.owns_lock()) {
      inline_call_ = submitted;
      inline_status_.reset();
      Backoff backoff;
      do {
        if (Progress())
          backoff.Reset();
        else
          backoff.Pause();
      } while (!inline_status_ && Clock::now() - start < kInlineTime);
      inline_call_ = nullptr;
    }
    if (progress.owns_lock() && inline_status_) {
      std::optional<Status> status = std::exchange(inline_status_, {});
      progress.unlock();
      WakeIfPending();
      return status;
    }
  }
  WakeIfPending();
  return std::nullopt;
}

void Endpoint::WakeIfPending() {
  {
    std::lock_guard lock(inbox_mutex_);
    if (pending_ == 0) return;
  }
  wake_.notify_one();
}

void Endpoint::Work() {
  // Sleeps of tens of microseconds should not be rounded up to the default 50.
  prctl(PR_SET_TIMERSLACK, 1000UL, 0UL, 0UL, 0UL);
  Backoff backoff;
  for (;;) {
    {
      std::unique_lock lock(inbox_mutex_);
      if (pending_ == 0) backoff.Reset();
      wake_.wait(lock, [this] { return stop_ || pending_ > 0; });
      if (stop_) return;
    }
    bool moved;
    {
      std::lock_guard lock(progress_mutex_);
      moved = Progress();
    }
    if (moved)
      backoff.Reset();
    else
      backoff.Pause();
  }
}

bool Endpoint::Progress() {
  Accept();
  if (ProgressChannels()) {
    polls_without_check_ = 0;
    return true;
  }
  if (++polls_without_check_ % kPollsPerCheck == 0) CheckPeers();
  return false;
}

bool Endpoint::ProgressChannels() {
  bool moved = false;
  std::vector<Channel::Finished> finished;
  Status status;
  for (auto& [group, channel] : channels_) {
    if (channel->idle()) continue;
    Result<bool> progress = channel->Progress(&finished);
    if (!progress.ok()) {
      status = progress.status();
      break;
    }
    moved |= *progress;
  }
  Finish(std::move(finished));
  if (!status.ok()) Fail(status);
  return moved;
}

void Endpoint::Accept() {
  Inbox arrived;
  {
    std::lock_guard lock(inbox_mutex_);
    arrived.swap(inbox_);
  }
  for (auto& [members, call] : arrived) {
    Status status = failed_;
    if (status.ok()) {
      Result<Channel*> channel = ChannelFor(members);
      if (channel.ok()) {
        (*channel)->Submit(std::move(call));
        continue;
      }
      status = channel.status();
    }
    std::vector<Channel::Finished> finished;
    finished.push_back({std::move(call), status});
    Finish(std::move(finished));
    if (failed_.ok()) Fail(status);
  }
}

Result<Channel*> Endpoint::ChannelFor(const std::vector<int32_t>& members) {
  const uint64_t hash = HashGroup(members);
  if (auto found = channels_.find(hash); found != channels_.end())
    return found->second.get();
  Group group{members, -1};
  for (size_t i = 0; i < members.size(); ++i) {
    if (members[i] < 0 || members[i] >= pool_->world_size())
      return Error(Code::kInvalidArgument, "rank ", members[i],
                   " is not one of the pool's ", pool_->world_size());
    if (members[i] == rank_) group.self = static_cast<int>(i);
  }
  if (group.self < 0)
    return Error(Code::kInvalidArgument, "rank ", rank_,
                 " is not a member of the group that it calls a collective on");
  auto channel = std::make_unique<Channel>(pool_, peers_, options_, group);
  CXL_RETURN_IF_ERROR(channel->Open(&arena_));
  return (channels_[hash] = std::move(channel)).get();
}

void Endpoint::CheckPeers() {
  const Clock::time_point now = Clock::now();
  for (auto& [group, channel] : channels_) {
    if (channel->idle()) continue;
    Status status = channel->CheckPeers(now);
    if (status.ok()) continue;
    // What a peer did last, before it ended, may be all that was missing.
    if (ProgressChannels()) return;
    Fail(status);
    return;
  }
}

void Endpoint::Fail(const Status& status) {
  if (failed_.ok()) {
    failed_ = status;
    peers_->GiveUp(rank_, status);
  }
  std::vector<Channel::Finished> finished;
  for (auto& [group, channel] : channels_) channel->Fail(failed_, &finished);
  {
    std::lock_guard lock(inbox_mutex_);
    for (auto& [members, call] : inbox_)
      finished.push_back({std::move(call), failed_});
    inbox_.clear();
  }
  Finish(std::move(finished));
}

void Endpoint::Finish(std::vector<Channel::Finished> finished) {
  if (finished.empty()) return;
  {
    std::lock_guard lock(inbox_mutex_);
    pending_ -= static_cast<int>(finished.size());
    if (pending_ == 0)
      stats_.seconds +=
          std::chrono::duration<double>(Clock::now() - busy_since_).count();
  }
  for (auto& [call, status] : finished) {
    if (call.get() == inline_call_) {
      inline_status_ = status;
      continue;
    }
    completions_->Run([done = std::move(call->done), status] { done(status); });
  }
}

Stats Endpoint::stats() {
  std::lock_guard progress(progress_mutex_);
  std::lock_guard lock(inbox_mutex_);
  Stats stats = stats_;
  for (auto& [group, channel] : channels_) {
    stats.bytes_published += channel->traffic().bytes_published;
    stats.bytes_retrieved += channel->traffic().bytes_retrieved;
  }
  return stats;
}

}  // namespace jax_cxl::comm
