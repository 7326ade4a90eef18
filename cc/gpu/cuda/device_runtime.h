#ifndef JAX_CXL_GPU_CUDA_DEVICE_RUNTIME_H_
#define JAX_CXL_GPU_CUDA_DEVICE_RUNTIME_H_

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <vector>

#include "cc/base/cuda/pool_registration.h"
#include "cc/base/status.h"
#include "cc/comm/runtime.h"
#include "cc/gpu/cuda/device_endpoint.h"

namespace jax_cxl::comm {

// The additional resources of a process whose ranks are GPUs. A process has at
// most one current DeviceRuntime.
//
// A thread watches the peers and the reports of the devices. When a call cannot
// complete, the thread first publishes the reason: to the peers, to the user's
// next call, and on stderr. Only then does the thread let the kernels stop
// their device. The reason comes first because CUDA itself reports only that a
// kernel failed.
//
// Start and Stop must not run concurrently. Everything else is thread-safe.
class DeviceRuntime {
 public:
  // `runtime` has a rank for each of `devices`. Fails with kUnimplemented if
  // devices cannot use the memory of the pool.
  static Status Start(std::shared_ptr<Runtime> runtime,
                      const std::vector<int>& devices,
                      const DeviceOptions& options);
  // Waits for all calls under way, and then ends the current runtime, if there
  // is one.
  static void Stop();
  static std::shared_ptr<DeviceRuntime> Current();

  ~DeviceRuntime();

  struct Local {
    int rank;
    DeviceEndpoint* endpoint;
  };
  const Local* Find(int32_t device) const;

  // Ends this process's collectives with `status`, unless an earlier error has
  // ended them.
  void Fail(const Status& status);

  int generation() const { return runtime_->generation(); }

  // Returns the error that ended this process's collectives, or OK.
  Status failure() const;

  Stats stats() const;

 private:
  DeviceRuntime() = default;

  void Watch();

  std::shared_ptr<Runtime> runtime_;
  std::unique_ptr<PoolRegistration> registration_;
  std::unordered_map<int32_t, Local> by_device_;
  std::vector<std::unique_ptr<DeviceEndpoint>> endpoints_;

  mutable std::mutex mutex_;
  std::condition_variable wake_;
  bool stop_ = false;
  Status failure_;
  std::thread watcher_;
};

}  // namespace jax_cxl::comm

#endif  // JAX_CXL_GPU_CUDA_DEVICE_RUNTIME_H_
