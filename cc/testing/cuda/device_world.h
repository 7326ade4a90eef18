#ifndef JAX_CXL_TESTING_CUDA_DEVICE_WORLD_H_
#define JAX_CXL_TESTING_CUDA_DEVICE_WORLD_H_

#include <cuda_runtime.h>

#include <memory>
#include <numeric>
#include <thread>
#include <vector>

#include "cc/base/cuda/cuda_status.h"
#include "cc/base/cuda/pool_registration.h"
#include "cc/gpu/cuda/device_endpoint.h"
#include "cc/testing/world/world.h"

namespace jax_cxl::comm {

inline int CountDevices() {
  // These variables must be set before CUDA starts. Several ranks may share a
  // GPU here, so they need many queues. All kernels are loaded in advance. To
  // load a kernel later, CUDA may wait for a running kernel. That kernel may
  // wait for another rank of this process, which cannot go on while CUDA waits.
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
  setenv("CUDA_DEVICE_MAX_COPY_CONNECTIONS", "32", 0);
  setenv("CUDA_MODULE_LOADING", "EAGER", 0);
  int devices = 0;
  return cudaGetDeviceCount(&devices) == cudaSuccess ? devices : 0;
}

inline void OkOrDie(const Status& status) {
  if (status.ok()) return;
  std::cerr << status.message() << std::endl;
  std::abort();
}

inline void OkOrDie(cudaError_t error) {
  OkOrDie(cuda::CudaStatus(error, "CUDA"));
}

// A job whose ranks are all in this process, with rank r on GPU r % count, for
// tests and benchmarks. If ranks share a GPU, their kernels run on it at the
// same time. This works as long as the blocks of all these kernels fit.
class DeviceWorld {
 public:
  DeviceWorld(int size, const DeviceOptions& options, int pool_devices = 1,
              uint64_t bytes_per_rank = 192 << 20,
              pool::CoherenceMode coherence = pool::ChosenCoherence())
      : world_(size, Options{}, size * bytes_per_rank, pool_devices,
               coherence) {
    std::vector<int> devices(std::min(size, CountDevices()));
    std::iota(devices.begin(), devices.end(), 0);
    registration_ = OrDie(PoolRegistration::Create(
        world_.pool().base(), world_.pool().total_bytes(), devices));
    for (int rank = 0; rank < size; ++rank) {
      const int device = rank % static_cast<int>(devices.size());
      endpoints_.push_back(std::make_unique<DeviceEndpoint>(
          &world_.pool(), &world_.peers(rank), &world_.endpoint(rank), options,
          device, [this](const Status& status) {
            std::lock_guard lock(mutex_);
            if (failure_.ok()) failure_ = status;
          }));
      OkOrDie(endpoints_.back()->Open());
      OkOrDie(cudaSetDevice(device));
      streams_.emplace_back();
      OkOrDie(
          cudaStreamCreateWithFlags(&streams_.back(), cudaStreamNonBlocking));
    }
  }

  ~DeviceWorld() {
    endpoints_.clear();
    for (cudaStream_t stream : streams_) cudaStreamDestroy(stream);
  }

  pool::Pool& pool() { return world_.pool(); }
  int size() const { return static_cast<int>(endpoints_.size()); }
  int device(int rank) const { return rank % CountDevices(); }
  DeviceEndpoint& endpoint(int rank) { return *endpoints_[rank]; }
  cudaStream_t stream(int rank) const { return streams_[rank]; }

  Status failure() const {
    std::lock_guard lock(mutex_);
    return failure_;
  }

  // Opens channels in advance. Otherwise the first call of one rank would wait
  // for the first call of another rank, which the same thread makes later.
  void OpenChannels(const std::vector<int32_t>& members) {
    std::vector<std::jthread> opening;
    for (int32_t rank : members)
      opening.emplace_back(
          [&, rank] { OkOrDie(endpoints_[rank]->Connect(members)); });
  }

 private:
  World world_;
  std::unique_ptr<PoolRegistration> registration_;
  std::vector<std::unique_ptr<DeviceEndpoint>> endpoints_;
  std::vector<cudaStream_t> streams_;
  mutable std::mutex mutex_;
  Status failure_;
};

}  // namespace jax_cxl::comm

#endif  // JAX_CXL_TESTING_CUDA_DEVICE_WORLD_H_
