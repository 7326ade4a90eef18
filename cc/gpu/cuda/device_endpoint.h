#ifndef JAX_CXL_GPU_CUDA_DEVICE_ENDPOINT_H_
#define JAX_CXL_GPU_CUDA_DEVICE_ENDPOINT_H_

#include <cuda_runtime_api.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "cc/base/cuda/streams.h"
#include "cc/base/status.h"
#include "cc/comm/endpoint.h"
#include "cc/comm/health/peers.h"
#include "cc/gpu/cuda/channel/plan_store.h"
#include "cc/gpu/cuda/channel/stream_channel.h"
#include "cc/gpu/cuda/started.h"
#include "cc/gpu/relay/relay.h"
#include "cc/pool/pool.h"

namespace jax_cxl::comm {

// One rank that is a GPU of this process. Enqueues collectives on XLA's streams
// and on its own stream.
//
// Thread-safe. Calls do not block, with two exceptions. The first call of a
// group blocks until the other members have opened the channel. If the pool has
// no memory left for a group, a call of this group takes the memory of the
// least recently used group whose members have finished all calls, and blocks
// until there is such a group.
class DeviceEndpoint {
 public:
  // `fail` ends the collectives of this process, and may run on any thread.
  DeviceEndpoint(pool::Pool* pool, Peers* peers, Endpoint* host,
                 const DeviceOptions& options, int device,
                 std::function<void(const Status&)> fail);
  ~DeviceEndpoint();

  Status Open();

  // Opens a group's channel, and waits for the other members.
  Status Connect(const std::vector<int32_t>& members);

  // Enqueues a call after the earlier work of `stream`.
  Status Enqueue(const std::vector<int32_t>& members, const Call& call,
                 cudaStream_t stream);

  // Enqueues a call on the endpoint's own stream, after the earlier work of
  // `stream`. Before the program uses the result or reuses the input's memory,
  // it must call EnqueueDone with the call's output. The result is then at
  // `result`.
  Status EnqueueStart(const std::vector<int32_t>& members, const Call& call,
                      cudaStream_t stream);
  Status EnqueueDone(const void* output, void* result, uint64_t bytes,
                     cudaStream_t stream);

  void Drain();

  // See Endpoint::Abort.
  void Abort(const Status& status) { fail_(status); }
  Stats stats();

  Status Check(Clock::time_point now);
  // Ends the waits of all calls, which stops the device.
  void EndWaits();

 private:
  Result<StreamChannel*> ChannelFor(const std::vector<int32_t>& members);
  // Takes this rank's memory back from another group. Waits until a group can
  // give memory back, and fails with `full` if none can in time.
  Status MakeRoom(const Status& full);
  // Closes a channel after another member has taken its memory back from the
  // channel.
  Status Leave(StreamChannel* channel);
  void Close(StreamChannel* channel);
  // Enqueues a call where it belongs: on `stream` itself if the call has no
  // peers, and otherwise on the channel of its group. Returns the stream on
  // which the call ends: see StreamChannel::Enqueue. Requires the mutex.
  Result<cudaStream_t> Route(const std::vector<int32_t>& members,
                             const Call& call, bool aside, cudaStream_t stream);

  pool::Pool* pool_;
  Peers* peers_;
  Endpoint* host_;
  DeviceOptions options_;
  int device_;
  std::function<void(const Status&)> fail_;

  std::mutex mutex_;
  PlanStore plans_;
  cuda::CopyEngine copy_engine_;
  std::unordered_map<uint64_t, std::unique_ptr<StreamChannel>> channels_;
  // How many channels of a group this endpoint has closed, by the group's hash.
  std::unordered_map<uint64_t, uint64_t> incarnations_;
  std::unordered_multimap<int, DeviceBuffers> spare_;  // by number of members
  uint64_t uses_ = 0;
  std::atomic<bool> stopped_{false};
  std::unique_ptr<Relay> relay_;  // null where the pool is coherent

  cuda::Stream own_stream_;
  Started started_;

  // The channels in `channels_`, for the threads that check and abort calls.
  // These threads use a mutex of their own, so they never wait while the first
  // call of a group waits for its peers.
  std::mutex watched_mutex_;
  std::vector<StreamChannel*> watched_;
  Stats closed_;  // of closed channels
};

}  // namespace jax_cxl::comm

#endif  // JAX_CXL_GPU_CUDA_DEVICE_ENDPOINT_H_
