#ifndef JAX_CXL_GPU_RELAY_RELAY_H_
#define JAX_CXL_GPU_RELAY_RELAY_H_

#include <condition_variable>
#include <cstddef>
#include <mutex>
#include <thread>
#include <vector>

#include "cc/gpu/relay/channel_relay.h"
#include "cc/gpu/relay/line_workers.h"

namespace jax_cxl::comm {

// Returns the number of threads for each GPU in a process with `cores` cores
// and `gpus` GPUs. Four threads write back and drop cache lines about as fast
// as a link of 50 GB/s carries data, provided the process has several times as
// many cores.
int FlushThreads(int cores, int gpus);
// Returns FlushThreads for the number of cores that this process may use.
int DefaultFlushThreads(int gpus);

// The threads that relay the doorbells of all channels of one GPU, and write
// back and drop cache lines for them. They sleep while no call is enqueued.
//
// Thread-safe.
class Relay {
 public:
  // Starts `threads` threads (at least 1). One of them relays doorbells, and
  // all of them write back and drop cache lines, `piece_bytes` at a time.
  Relay(const pool::Coherence& coherence, int threads, size_t piece_bytes);
  ~Relay();

  // Wakes the threads: a channel that follows a journal has calls from now on.
  void Add(ChannelRelay* channel);

  // Call it after a call has been enqueued on a channel.
  void Wake();

  // Waits until the relay has finished all calls. The devices of all channels
  // must have ended their calls.
  void Drain();

 private:
  void Run();
  bool Pending() const;

  LineWorkers workers_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<ChannelRelay*> channels_;
  bool stop_ = false;
  std::jthread thread_;
};

}  // namespace jax_cxl::comm

#endif  // JAX_CXL_GPU_RELAY_RELAY_H_
