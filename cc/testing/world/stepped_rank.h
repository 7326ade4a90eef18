#ifndef JAX_CXL_TESTING_WORLD_STEPPED_RANK_H_
#define JAX_CXL_TESTING_WORLD_STEPPED_RANK_H_

#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "cc/base/ticks.h"
#include "cc/comm/connect/arena.h"
#include "cc/comm/health/peers.h"
#include "cc/comm/order/channels.h"
#include "cc/comm/record/recorder.h"
#include "cc/pool/pool.h"
#include "cc/testing/world/world.h"

namespace jax_cxl::comm {

// Does the work of an Endpoint, but without threads: the test itself calls
// Step.
class SteppedRank {
 public:
  SteppedRank(pool::Pool* pool, Peers* peers, const Options& options, int rank)
      : peers_(peers),
        rank_(rank),
        recorder_(pool, rank),
        arena_(*pool, rank),
        channels_(pool, peers, &recorder_, &arena_, options) {}

  void StartCall(const std::vector<int32_t>& members,
                 std::unique_ptr<Call> call) {
    call->submitted = Ticks();
    Channel* channel = channels_.Find(members);
    if (channel == nullptr) {
      const auto self = std::find(members.begin(), members.end(), rank_);
      channel = OrDie(
          channels_.Add({members, static_cast<int>(self - members.begin())}));
    }
    Check(channels_.Use(channel));
    recorder_.Record(call.get(), channel->key());
    const Status status = failed_.ok() ? channel->AddCall(call) : failed_;
    if (call != nullptr) finished_.push_back({std::move(call), status});
    Check(status);
  }

  // Lets each open channel make progress. Returns true if one of them did.
  bool Step() {
    bool moved = false;
    for (Channel* channel : channels_.open()) {
      if (!failed_.ok()) return false;
      if (channel->idle()) continue;
      const Result<bool> progress = channel->Progress(&finished_);
      Check(progress.status());
      moved |= progress.ok() && *progress;
    }
    if (failed_.ok()) Check(channels_.OpenWaiting());
    return moved;
  }

  void CheckPeers(Clock::time_point now) {
    channels_.ForEach([&](Channel* channel) {
      if (failed_.ok() && !channel->idle()) Check(channel->CheckPeers(now));
    });
  }

  bool idle() const {
    bool idle = true;
    channels_.ForEach([&](const Channel* channel) { idle &= channel->idle(); });
    return idle;
  }

  const std::vector<Finished>& finished() const { return finished_; }

 private:
  void Check(const Status& status) {
    if (status.ok() || !failed_.ok()) return;
    failed_ = status;
    peers_->GiveUp(rank_, status);
    channels_.ForEach(
        [&](Channel* channel) { channel->Fail(status, &finished_); });
  }

  Peers* peers_;
  int rank_;
  Recorder recorder_;
  Arena arena_;
  Channels channels_;
  Status failed_;
  std::vector<Finished> finished_;
};

}  // namespace jax_cxl::comm

#endif  // JAX_CXL_TESTING_WORLD_STEPPED_RANK_H_
