#include "cc/gpu/cuda/device_runtime.h"

#include <chrono>
#include <cstdio>
#include <utility>

namespace jax_cxl::comm {
namespace {

constexpr auto kWatchInterval = std::chrono::milliseconds(10);

// Never destroyed: XLA's threads may still use it while the process exits.
struct CurrentRuntime {
  std::mutex mutex;
  std::shared_ptr<DeviceRuntime> runtime;
};

CurrentRuntime& TheCurrent() {
  static auto& current = *new CurrentRuntime;
  return current;
}

}  // namespace

Status DeviceRuntime::Start(std::shared_ptr<Runtime> runtime,
                            const std::vector<int>& devices,
                            const DeviceOptions& options) {
  std::shared_ptr<DeviceRuntime> made(new DeviceRuntime);
  made->runtime_ = std::move(runtime);
  const pool::Pool& pool = *made->runtime_->pool();
  Result<std::unique_ptr<PoolRegistration>> registration =
      PoolRegistration::Create(pool.base(), pool.total_bytes(), devices);
  if (!registration.ok())
    return Error(Code::kInvalidArgument,
                 "GPUs cannot use the pool: ", registration.status().message());
  made->registration_ = *std::move(registration);
  DeviceOptions own = options;
  if (own.flush_threads == 0)
    own.flush_threads = DefaultFlushThreads(static_cast<int>(devices.size()));
  for (int device : devices) {
    const Runtime::Local* local = made->runtime_->Find(device);
    if (local == nullptr)
      return Error(Code::kInternal, "device ", device,
                   " has no rank; please report this to jax_cxl");
    auto endpoint = std::make_unique<DeviceEndpoint>(
        made->runtime_->pool(), made->runtime_->peers(), local->endpoint, own,
        device,
        [raw = made.get()](const Status& status) { raw->Fail(status); });
    CXL_RETURN_IF_ERROR(endpoint->Open());
    made->by_device_[device] = {local->rank, endpoint.get()};
    made->endpoints_.push_back(std::move(endpoint));
  }
  made->watcher_ = std::thread([raw = made.get()] { raw->Watch(); });
  CurrentRuntime& current = TheCurrent();
  std::lock_guard lock(current.mutex);
  if (current.runtime != nullptr)
    return Error(Code::kFailedPrecondition,
                 "jax_cxl is running already; call jax_cxl.shutdown() first");
  current.runtime = std::move(made);
  return OkStatus();
}

void DeviceRuntime::Stop() {
  std::shared_ptr<DeviceRuntime> runtime;
  CurrentRuntime& current = TheCurrent();
  {
    std::lock_guard lock(current.mutex);
    runtime = std::move(current.runtime);
    current.runtime = nullptr;
  }
  // A handler may still hold the runtime. Wait until the handler returns, so
  // that this thread is the last owner.
  while (runtime != nullptr && runtime.use_count() > 1)
    std::this_thread::sleep_for(std::chrono::microseconds(100));
}

std::shared_ptr<DeviceRuntime> DeviceRuntime::Current() {
  CurrentRuntime& current = TheCurrent();
  std::lock_guard lock(current.mutex);
  return current.runtime;
}

DeviceRuntime::~DeviceRuntime() {
  // Kernels that wait for a peer need the watcher until they are done.
  for (const auto& endpoint : endpoints_) endpoint->Drain();
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  if (watcher_.joinable()) watcher_.join();
  if (!failure_.ok()) return;
  // Records the calls that have finished since the watcher's last check.
  for (const auto& endpoint : endpoints_)
    static_cast<void>(endpoint->Check(runtime_->peers()->AwakeTime()));
}

const DeviceRuntime::Local* DeviceRuntime::Find(int32_t device) const {
  auto found = by_device_.find(device);
  return found == by_device_.end() ? nullptr : &found->second;
}

Status DeviceRuntime::failure() const {
  std::lock_guard lock(mutex_);
  return failure_;
}

Stats DeviceRuntime::stats() const {
  Stats total;
  for (const auto& endpoint : endpoints_) total += endpoint->stats();
  return total;
}

void DeviceRuntime::Watch() {
  for (;;) {
    {
      std::unique_lock lock(mutex_);
      if (wake_.wait_for(lock, kWatchInterval, [this] { return stop_; }))
        return;
      if (!failure_.ok()) continue;
    }
    for (const auto& endpoint : endpoints_) {
      Status status = endpoint->Check(runtime_->peers()->AwakeTime());
      if (status.ok()) continue;
      Fail(status);
      break;
    }
  }
}

void DeviceRuntime::Fail(const Status& status) {
  {
    std::lock_guard lock(mutex_);
    if (!failure_.ok()) return;
    failure_ = status;
  }
  std::fprintf(stderr, "jax_cxl: error: %.*s: %s\n",
               static_cast<int>(CodeName(status.code()).size()),
               CodeName(status.code()).data(), status.message().c_str());
  for (const auto& [device, local] : by_device_)
    runtime_->peers()->GiveUp(local.rank, status);
  for (const auto& endpoint : endpoints_) endpoint->EndWaits();
}

}  // namespace jax_cxl::comm
