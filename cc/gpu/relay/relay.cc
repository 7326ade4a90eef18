#include "cc/gpu/relay/relay.h"

#include <sched.h>

#include <algorithm>
#include <chrono>

#include "cc/base/idle.h"
#include "cc/comm/call/backoff.h"

namespace jax_cxl::comm {
namespace {

// How long the thread sleeps if a call is enqueued, but neither the device nor
// a peer has done anything for a while. So a call after a long computation may
// start this much later. A thread that sleeps and polls like this keeps a core
// 5% busy.
constexpr auto kNap = std::chrono::microseconds(50);

}  // namespace

int FlushThreads(int cores, int gpus) {
  constexpr int kMost = 4;
  constexpr int kCoresEach = 4;
  return std::clamp(cores / (kCoresEach * gpus), 1, kMost);
}

int DefaultFlushThreads(int gpus) {
  cpu_set_t cores;
  const bool known = sched_getaffinity(0, sizeof(cores), &cores) == 0;
  return FlushThreads(known ? CPU_COUNT(&cores) : 1, gpus);
}

Relay::Relay(const pool::Coherence& coherence, int threads, size_t piece_bytes)
    : workers_(coherence, std::max(threads, 1) - 1, piece_bytes),
      thread_([this] { Run(); }) {}

Relay::~Relay() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
}

void Relay::Add(ChannelRelay* channel) {
  {
    std::lock_guard lock(mutex_);
    channels_.push_back(channel);
  }
  wake_.notify_one();
}

void Relay::Wake() {
  // Take the mutex, so that the thread cannot miss the notification while it
  // falls asleep.
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

// Returns true if a channel has calls that the relay has not finished. Requires
// the mutex.
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
      // Sleep only after some polls, because waking takes longer than a short
      // call.
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
    // This thread takes a piece of the cache lines only if the helpers cannot
    // keep up, because a doorbell should not wait as long as a piece takes.
    if (moved || (workers_.behind() && workers_.Help())) {
      backoff.Reset();
    } else if (backoff.spinning()) {
      backoff.Pause();
    } else {
      std::this_thread::sleep_for(kNap);
    }
  }
}

}  // namespace jax_cxl::comm
