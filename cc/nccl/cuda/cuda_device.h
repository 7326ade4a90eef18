#ifndef JAX_CXL_NCCL_CUDA_CUDA_DEVICE_H_
#define JAX_CXL_NCCL_CUDA_CUDA_DEVICE_H_

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "cc/base/cuda/pool_registration.h"
#include "cc/base/status.h"
#include "cc/gpu/cuda/channel/counted_channel.h"
#include "cc/gpu/cuda/channel/device_connection.h"
#include "cc/gpu/cuda/channel/plan_store.h"
#include "cc/gpu/relay/relay.h"
#include "cc/nccl/cuda/stream_order.h"
#include "cc/nccl/device.h"
#include "cc/nccl/facts.h"
#include "cc/nccl/interface/settings.h"
#include "cc/nccl/job.h"

namespace jax_cxl::nccl {

// A GPU as one rank of a communicator.
class CudaDevice : public Device {
 public:
  // `ordinal` is the number of the device in this process. Returns once the
  // devices of all ranks are connected. All kernels are then loaded: loading
  // one later would wait for kernels that wait for other GPUs.
  static Result<std::unique_ptr<Device>> Make(Job* job, int ordinal,
                                              const Settings& settings,
                                              const std::atomic<bool>& cancel);
  ~CudaDevice() override;

  Status MakeRoom() override;
  Status OpenPair(int source, int destination) override;
  Result<bool> TryConnectPair(int source, int destination) override;
  int most_transfers() const override { return most_transfers_; }
  Status Enqueue(const Collective& collective, Stream stream) override;
  Status SendAndReceive(std::span<const Transfer> transfers) override;
  Status Drain() override;
  void EndThreads() override;
  Status Check(comm::Clock::time_point now) override;
  void Abort() override;

 private:
  CudaDevice(Job* job, int ordinal, const Settings& settings);
  Status Open(const std::atomic<bool>& cancel);
  Status Agree();
  void Choose(std::span<const Facts> ranks);
  // Registers what is left of the pool's memory, up to `end`.
  Status Register(uint64_t end);
  // Waits until the peers have all that this device has done.
  void AwaitRelay(
      comm::Clock::time_point deadline = comm::Clock::time_point::max());
  bool RelayIsDone();
  Result<std::unique_ptr<comm::CountedChannel>> MakeChannel(
      const std::vector<int32_t>& members, const comm::DeviceOptions& options);

  Job* job_;
  const int ordinal_;
  const Settings& settings_;
  comm::DeviceOptions options_;       // of collectives
  comm::DeviceOptions pair_options_;  // of sends and receives
  int most_transfers_ = 2;
  std::vector<std::unique_ptr<comm::PoolRegistration>> registrations_;
  std::atomic<uint64_t> registered_{0};  // bytes of the pool
  std::unique_ptr<comm::Relay> relay_;   // null if the pool is coherent
  comm::PlanStore plans_;
  StreamOrder order_;
  std::unique_ptr<comm::CountedChannel> channel_;
  // By source and destination.
  std::map<std::pair<int, int>, std::unique_ptr<comm::CountedChannel>> pairs_;

  std::mutex watched_mutex_;
  std::vector<comm::CountedChannel*> watched_;
};

}  // namespace jax_cxl::nccl

#endif  // JAX_CXL_NCCL_CUDA_CUDA_DEVICE_H_
