#ifndef JAX_CXL_TESTING_WORLD_STEPPED_RANK_H_
#define JAX_CXL_TESTING_WORLD_STEPPED_RANK_H_

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "cc/base/ticks.h"
#include "cc/comm/connect/arena.h"
#include "cc/comm/health/peers.h"
#include "cc/comm/order/channel.h"
#include "cc/comm/record/recorder.h"
#include "cc/pool/pool.h"

namespace jax_cxl::comm {

// An Endpoint without threads. The test steps the rank itself.
class SteppedRank {
 public:
  SteppedRank(pool::Pool* pool, Peers* peers, const Options& options, int rank)
      : pool_(pool),
        peers_(peers),
        options_(options),
        rank_(rank),
        recorder_(pool, rank),
        arena_(*pool, rank) {}

  void StartCall(const std::vector<int32_t>& members,
                 std::unique_ptr<Call> call) {
    call->submitted = Ticks();
    std::unique_ptr<Channel>& channel = channels_[members];
    if (channel == nullptr) {
      const auto self = std::find(members.begin(), members.end(), rank_);
      channel = std::make_unique<Channel>(
          pool_, peers_, &recorder_, options_,
          Group{members, static_cast<int>(self - members.begin())});
      Check(channel->Open(&arena_));
    }
    recorder_.Record(call.get(), channel->key());
    const Status status = failed_.ok() ? channel->AddCall(call) : failed_;
    if (call != nullptr) finished_.push_back({std::move(call), status});
    Check(status);
  }

  // Returns true if anything made progress.
  bool Step() {
    bool moved = false;
    for (auto& [members, channel] : channels_) {
      if (!failed_.ok()) return false;
      if (channel->idle()) continue;
      const Result<bool> progress = channel->Progress(&finished_);
      Check(progress.status());
      moved |= progress.ok() && *progress;
    }
    return moved;
  }

  void CheckPeers(Clock::time_point now) {
    for (auto& [members, channel] : channels_)
      if (failed_.ok() && !channel->idle()) Check(channel->CheckPeers(now));
  }

  bool idle() const {
    return std::all_of(channels_.begin(), channels_.end(),
                       [](const auto& entry) { return entry.second->idle(); });
  }

  const std::vector<Finished>& finished() const { return finished_; }

 private:
  void Check(const Status& status) {
    if (status.ok() || !failed_.ok()) return;
    failed_ = status;
    peers_->GiveUp(rank_, status);
    for (auto& [members, channel] : channels_)
      channel->Fail(status, &finished_);
  }

  pool::Pool* pool_;
  Peers* peers_;
  Options options_;
  int rank_;
  Recorder recorder_;
  Arena arena_;
  std::map<std::vector<int32_t>, std::unique_ptr<Channel>> channels_;
  Status failed_;
  std::vector<Finished> finished_;
};

}  // namespace jax_cxl::comm

#endif  // JAX_CXL_TESTING_WORLD_STEPPED_RANK_H_
