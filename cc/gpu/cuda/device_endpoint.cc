#include "cc/gpu/cuda/device_endpoint.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "cc/base/cuda/cuda_status.h"
#include "cc/base/cuda/current_device.h"
#include "cc/comm/call/backoff.h"
#include "cc/engine/cuda/executor.h"
#include "cc/engine/cuda/flagged/flagged.h"

namespace jax_cxl::comm {
namespace {

// Executes a permutation in a group of one rank. The output is a copy of the
// input, or zeros if the rank has no source.
Status PermuteAlone(const Call& call, cudaStream_t stream) {
  const uint64_t bytes = plan::OutputBytes(call.request);
  const cudaError_t error =
      call.request.sources[0] < 0
          ? cudaMemsetAsync(call.output, 0, bytes, stream)
          : cudaMemcpyAsync(call.output, call.input, bytes,
                            cudaMemcpyDeviceToDevice, stream);
  return cuda::CudaStatus(error, "a permutation without peers");
}

// Returns true if the largest rings for short messages take only a small part
// of a rank's memory.
bool HasLargeArena(const pool::Pool& pool) {
  constexpr uint64_t kMostParts = 16;
  uint64_t bytes = 0;
  for (int extent = 0; extent < pool.num_extents(); ++extent)
    bytes += pool.arena(extent, 0).bytes;
  return kMostParts * cuda::FlaggedRingBytes(plan::kMostFlaggedBytes) <= bytes;
}

}  // namespace

DeviceEndpoint::DeviceEndpoint(pool::Pool* pool, Peers* peers, Endpoint* host,
                               const DeviceOptions& options, int device,
                               std::function<void(const Status&)> fail)
    : pool_(pool),
      peers_(peers),
      host_(host),
      options_(options),
      device_(device),
      fail_(std::move(fail)) {}

DeviceEndpoint::~DeviceEndpoint() {
  Drain();  // Kernels use the objects destroyed below.
  cuda::CurrentDevice current(device_);
  relay_.reset();
  channels_.clear();
}

Status DeviceEndpoint::Open() {
  cuda::CurrentDevice current(device_);
  CXL_RETURN_IF_ERROR(cuda::CudaStatus(cuda::Preload(), "loading the kernels"));
  CXL_RETURN_IF_ERROR(
      cuda::CudaStatus(cuda::PreloadFlagged(), "loading the kernels"));
  CXL_RETURN_IF_ERROR(plans_.MakeRoom());
  CXL_RETURN_IF_ERROR(copy_engine_.Open());
  if (pool_->coherence().cache() != nullptr)
    relay_ = std::make_unique<Relay>(pool_->coherence(),
                                     options_.flush_threads > 0
                                         ? options_.flush_threads
                                         : DefaultFlushThreads(/*gpus=*/1),
                                     options_.flush_piece_bytes);
  // A relay supports only rings of the smaller size, plan::kFlaggedBytes.
  if (relay_ != nullptr || !HasLargeArena(*pool_))
    options_.flagged_slot_bytes =
        std::min(options_.flagged_slot_bytes, plan::kFlaggedBytes);
  CXL_ASSIGN_OR_RETURN(own_stream_, cuda::MakeUrgentStream());
  return OkStatus();
}

Result<StreamChannel*> DeviceEndpoint::ChannelFor(
    const std::vector<int32_t>& members) {
  const uint64_t hash = HashGroup(members);
  if (auto found = channels_.find(hash); found != channels_.end()) {
    found->second->last_use = ++uses_;
    return found->second.get();
  }
  CXL_ASSIGN_OR_RETURN(Group group, host_->GroupOf(members));
  auto channel =
      std::make_unique<StreamChannel>(pool_, peers_, options_, std::move(group),
                                      &plans_, &copy_engine_, relay_.get());
  channel->last_use = ++uses_;
  DeviceBuffers buffers;
  for (;;) {
    if (buffers.members == nullptr)
      if (auto spare = spare_.extract(channel->members_count()))
        buffers = std::move(spare.mapped());
    const Status opened = channel->Open(host_->arena(), host_->recorder(),
                                        incarnations_[hash], &buffers);
    if (opened.ok()) break;
    if (opened.code() != Code::kResourceExhausted) return opened;
    CXL_RETURN_IF_ERROR(MakeRoom(opened));
  }
  std::lock_guard lock(watched_mutex_);
  watched_.push_back(channel.get());
  return (channels_[hash] = std::move(channel)).get();
}

Status DeviceEndpoint::MakeRoom(const Status& full) {
  const auto deadline = peers_->AwakeTime() +
                        std::chrono::duration_cast<Clock::duration>(
                            std::chrono::duration<double>(options_.timeout_s));
  Backoff backoff;
  while (!stopped_ && peers_->AwakeTime() < deadline) {
    std::vector<StreamChannel*> oldest_first;
    for (const auto& [hash, channel] : channels_)
      oldest_first.push_back(channel.get());
    std::ranges::sort(oldest_first, {}, &StreamChannel::last_use);
    for (StreamChannel* channel : oldest_first)
      if (channel->Idle() && channel->TryTake()) {
        Close(channel);
        return OkStatus();
      }
    if (oldest_first.empty() || relay_ != nullptr) return full;
    backoff.Pause();
  }
  return full;
}

Status DeviceEndpoint::Leave(StreamChannel* channel) {
  // The last kernel has reported that all calls have finished, but the event
  // after it may come a little later. So wait until the channel is idle.
  Backoff backoff;
  while (!channel->Idle()) {
    if (stopped_) return EarlierFailure();
    backoff.Pause();
  }
  Close(channel);
  return OkStatus();
}

void DeviceEndpoint::Close(StreamChannel* channel) {
  const auto found = std::ranges::find_if(channels_, [&](const auto& each) {
    return each.second.get() == channel;
  });
  {
    std::lock_guard lock(watched_mutex_);
    // The last Check of this channel: it records that the calls have ended.
    static_cast<void>(channel->Check(peers_->AwakeTime()));
    closed_ += channel->stats();
    std::erase(watched_, channel);
  }
  ++incarnations_[found->first];
  spare_.emplace(channel->members_count(), channel->Close(host_->arena()));
  channels_.erase(found);
}

Status DeviceEndpoint::Connect(const std::vector<int32_t>& members) {
  cuda::CurrentDevice current(device_);
  std::lock_guard lock(mutex_);
  CXL_ASSIGN_OR_RETURN(StreamChannel * channel, ChannelFor(members));
  Call call;
  call.name = "connect";
  call.request.op = plan::Op::kBarrier;
  return channel->Connect(call);
}

Result<cudaStream_t> DeviceEndpoint::Route(const std::vector<int32_t>& members,
                                           const Call& call, bool aside,
                                           cudaStream_t stream) {
  if (members.size() == 1 && call.request.op == plan::Op::kPermute) {
    CXL_RETURN_IF_ERROR(PermuteAlone(call, stream));
    return stream;
  }
  for (;;) {
    CXL_ASSIGN_OR_RETURN(StreamChannel * channel, ChannelFor(members));
    if (channel->Announce(call)) return channel->Enqueue(call, aside, stream);
    CXL_RETURN_IF_ERROR(Leave(channel));
  }
}

Status DeviceEndpoint::Enqueue(const std::vector<int32_t>& members,
                               const Call& call, cudaStream_t stream) {
  cuda::CurrentDevice current(device_);
  std::lock_guard lock(mutex_);
  return Route(members, call, false, stream).status();
}

Status DeviceEndpoint::EnqueueStart(const std::vector<int32_t>& members,
                                    const Call& call, cudaStream_t stream) {
  cuda::CurrentDevice current(device_);
  std::lock_guard lock(mutex_);
  CXL_RETURN_IF_ERROR(started_.Begin(call.output, stream, own_stream_.get()));
  CXL_ASSIGN_OR_RETURN(const cudaStream_t end,
                       Route(members, call, true, own_stream_.get()));
  return started_.End(call.output, end);
}

Status DeviceEndpoint::EnqueueDone(const void* output, void* result,
                                   uint64_t bytes, cudaStream_t stream) {
  cuda::CurrentDevice current(device_);
  std::lock_guard lock(mutex_);
  return started_.Done(output, result, bytes, stream);
}

void DeviceEndpoint::Drain() {
  cuda::CurrentDevice current(device_);
  const bool done = cudaDeviceSynchronize() == cudaSuccess;
  // Peers may need the last doorbells of the device, which the relay passes on.
  // After an error, the device rings no more doorbells.
  if (done && relay_ != nullptr) relay_->Drain();
}

Status DeviceEndpoint::Check(Clock::time_point now) {
  std::lock_guard lock(watched_mutex_);
  for (StreamChannel* channel : watched_)
    CXL_RETURN_IF_ERROR(channel->Check(now));
  return OkStatus();
}

void DeviceEndpoint::EndWaits() {
  stopped_ = true;
  std::lock_guard lock(watched_mutex_);
  for (StreamChannel* channel : watched_) channel->Abort();
}

Stats DeviceEndpoint::stats() {
  std::lock_guard lock(watched_mutex_);
  Stats total = closed_;
  for (StreamChannel* channel : watched_) total += channel->stats();
  return total;
}

}  // namespace jax_cxl::comm
