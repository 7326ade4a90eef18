#ifndef JAX_CXL_COMM_WORLD_TESTING_H_
#define JAX_CXL_COMM_WORLD_TESTING_H_

#include <unistd.h>

#include <condition_variable>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <mutex>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "cc/comm/completions.h"
#include "cc/comm/endpoint.h"
#include "cc/comm/peers.h"
#include "cc/pool/pool.h"

namespace jax_cxl::comm {

template <typename T>
T OrDie(Result<T> result) {
  if (!result.ok()) {
    std::cerr << result.status().message() << std::endl;
    std::abort();
  }
  return *std::move(result);
}

// A job whose ranks are all endpoints of this process: for tests and
// benchmarks of the communicator.
class World {
 public:
  World(int size, const Options& options, uint64_t bytes = 64 << 20,
        int devices = 1,
        pool::CoherenceMode coherence = pool::CoherenceMode::kCoherent) {
    pool::PoolSpec spec;
    spec.paths = {"test." + std::to_string(getpid()) + "." +
                  std::to_string(size)};
    spec.bytes = bytes;
    spec.devices_per_path = devices;
    spec.coherence = coherence;
    pool_ = OrDie(pool::Pool::Create(spec, size));
    pool_->Unlink();
    std::vector<int> local(size);
    std::iota(local.begin(), local.end(), 0);
    for (int rank : local) Register(pool_.get(), rank, 0, rank);
    peers_ =
        OrDie(Peers::Start(pool_.get(), local, options.heartbeat_timeout_s));
    for (int rank : local)
      endpoints_.push_back(std::make_unique<Endpoint>(
          pool_.get(), peers_.get(), &completions_, options, rank));
  }

  int size() const { return static_cast<int>(endpoints_.size()); }
  Endpoint& endpoint(int rank) { return *endpoints_[rank]; }
  pool::Pool& pool() { return *pool_; }
  Peers& peers() { return *peers_; }

 private:
  std::unique_ptr<pool::Pool> pool_;
  Completions completions_;
  std::unique_ptr<Peers> peers_;
  std::vector<std::unique_ptr<Endpoint>> endpoints_;
};

// Waits for a number of calls and keeps their first error.
class Countdown {
 public:
  explicit Countdown(int count) : left_(count) {}

  void Done(const Status& status) {
    std::lock_guard lock(mutex_);
    if (first_error_.ok()) first_error_ = status;
    if (--left_ == 0) zero_.notify_all();
  }

  Status Wait() {
    std::unique_lock lock(mutex_);
    zero_.wait(lock, [this] { return left_ == 0; });
    return first_error_;
  }

  // Hands a call to an endpoint and counts it down when it is finished.
  void Submit(Endpoint& endpoint, const std::vector<int32_t>& members,
              std::unique_ptr<Call> call) {
    call->done = [this](const Status& status) { Done(status); };
    if (auto status = endpoint.Submit(members, std::move(call))) Done(*status);
  }

 private:
  std::mutex mutex_;
  std::condition_variable zero_;
  int left_;
  Status first_error_;
};

}  // namespace jax_cxl::comm

#endif  // JAX_CXL_COMM_WORLD_TESTING_H_
