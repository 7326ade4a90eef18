#ifndef JAX_CXL_COMM_RELAY_RELAY_H_
#define JAX_CXL_COMM_RELAY_RELAY_H_

#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#include "cc/comm/relay/channel_relay.h"
#include "cc/comm/relay/line_workers.h"

namespace jax_cxl::comm {

// The threads that pass on what the channels of one GPU ring, and write back
// and drop their lines. They sleep while no call is enqueued.
//
// Thread-safe.
class Relay {
 public:
  // `threads`, at least 1: one passes doorbells on, and all move lines.
  Relay(const pool::Coherence& coherence, int threads);
  ~Relay();
  Relay(const Relay&) = delete;

  // `channel` outlives this object.
  void Add(ChannelRelay* channel);

  // A call has been enqueued on a channel.
  void Wake();

  // Waits until all calls that devices have ended are passed on. Every device
  // of the channels must be done.
  void Drain();

 private:
  void Run();
  bool Pending() const;

  LineWorkers workers_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<ChannelRelay*> channels_;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace jax_cxl::comm

#endif  // JAX_CXL_COMM_RELAY_RELAY_H_
