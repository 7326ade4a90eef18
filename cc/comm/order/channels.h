#ifndef JAX_CXL_COMM_ORDER_CHANNELS_H_
#define JAX_CXL_COMM_ORDER_CHANNELS_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <unordered_map>
#include <vector>

#include "cc/base/status.h"
#include "cc/comm/call/call.h"
#include "cc/comm/call/tuning.h"
#include "cc/comm/connect/arena.h"
#include "cc/comm/health/peers.h"
#include "cc/comm/order/channel.h"
#include "cc/comm/record/recorder.h"
#include "cc/pool/pool.h"

namespace jax_cxl::comm {

// All channels of one rank. The rank's memory holds a limited number of them.
// If the memory is full, a channel that needs memory takes it from another
// channel: from the least recently used channel that can close. This needs no
// agreement with other ranks, because each rank writes only its own memory
// (docs/decisions/0026-memory-of-groups.md).
//
// Not thread-safe: its Endpoint serializes all use.
class Channels {
 public:
  Channels(pool::Pool* pool, Peers* peers, Recorder* recorder, Arena* arena,
           const Options& options);

  Channel* Find(const std::vector<int32_t>& members) const;
  // Makes the channel of a new group, without memory. Fails with kInternal if
  // another group has the same key.
  Result<Channel*> Add(const Group& group);

  // Gives memory to `channel`, which is about to get a call, or lets it wait.
  // Errors: those of OpenWaiting.
  Status Use(Channel* channel);

  // Gives memory to the waiting channels, as long as there is any. If channels
  // wait, call it after calls have finished. Fails with kResourceExhausted if
  // the memory is too small for any channel.
  Status OpenWaiting();

  const std::vector<Channel*>& open() const { return open_; }
  const std::deque<Channel*>& waiting() const { return waiting_; }

  template <typename Function>
  void ForEach(const Function& function) const {
    for (const auto& [key, channel] : all_) function(channel.get());
  }

 private:
  Result<pool::ChannelPlace> TakeMemory(const Channel& channel);

  pool::Pool* pool_;
  Peers* peers_;
  Recorder* recorder_;
  Arena* arena_;
  Options options_;
  std::unordered_map<uint64_t, std::unique_ptr<Channel>> all_;  // by key
  std::vector<Channel*> open_;
  std::deque<Channel*> waiting_;
  uint64_t uses_ = 0;
  Status full_;  // why the arena has no memory for another channel
};

}  // namespace jax_cxl::comm

#endif  // JAX_CXL_COMM_ORDER_CHANNELS_H_
