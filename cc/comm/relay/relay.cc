#include "cc/comm/relay/relay.h"

#include <algorithm>
#include <chrono>

#include "cc/base/idle.h"
#include "cc/comm/call/backoff.h"

namespace jax_cxl::comm {
namespace {

// How long the thread sleeps where a call is enqueued, but neither the device
// nor a peer has done anything for a while: a call that follows on a long
// computation begins late by this, and a core is 5% busy.
constexpr auto kNap = std::chrono::microseconds(50);

}  // namespace

Relay::Relay(const pool::Coherence& coherence, int threads)
    : workers_(coherence, std::max(threads, 1) - 1),
      thread_([this] { Run(); }) {}

Relay::~Relay() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  thread_.join();
}

void Relay::Add(ChannelRelay* channel) {
  std::lock_guard lock(mutex_);
  channels_.push_back(channel);
}

void Relay::Wake() {
  // With the lock, so that the thread does not fall asleep meanwhile.
  {
    std::lock_guard lock(mutex_);
  }
  wake_.notify_one();
}

void Relay::Drain() {
  Backoff backoff;
  for (;;) {
    {
      std::lock_guard lock(mutex_);
      if (!Pending()) return;
    }
    backoff.Pause();
  }
}

// With the mutex.
bool Relay::Pending() const {
  return std::ranges::any_of(
      channels_, [](const ChannelRelay* channel) { return !channel->idle(); });
}

void Relay::Run() {
  const OwnThread own;
  Backoff backoff;
  std::vector<ChannelRelay*> channels;
  for (;;) {
    {
      std::unique_lock lock(mutex_);
      // Not at once: it takes longer to wake than a short call takes.
      if (!stop_ && !Pending() && !backoff.spinning()) {
        wake_.wait(lock, [this] { return stop_ || Pending(); });
        backoff.Reset();
      }
      if (stop_) return;
      channels = channels_;
    }
    bool moved = false;
    for (ChannelRelay* channel : channels)
      if (!channel->idle()) moved |= channel->Advance(workers_);
    if (moved || workers_.Help()) {
      backoff.Reset();
    } else if (backoff.spinning()) {
      backoff.Pause();
    } else {
      std::this_thread::sleep_for(kNap);
    }
  }
}

}  // namespace jax_cxl::comm
