#ifndef JAX_CXL_TESTING_WORLD_WORLD_H_
#define JAX_CXL_TESTING_WORLD_WORLD_H_

#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "cc/comm/completions.h"
#include "cc/comm/endpoint.h"
#include "cc/comm/health/peers.h"
#include "cc/pool/pool.h"
#include "cc/testing/pool/chosen_pool.h"

namespace jax_cxl::comm {

template <typename T>
T OrDie(Result<T> result) {
  if (!result.ok()) {
    std::cerr << result.status().message() << std::endl;
    std::abort();
  }
  return *std::move(result);
}

using pool::Incoherence;

// A job whose ranks are all endpoints of this process, for tests and benchmarks
// of the communicator. On an incoherent pool, the ranks are distributed at
// random over "hosts", each of which maps the pool through its own cache.
class World {
 public:
  World(int size, const Options& options, uint64_t bytes = 64 << 20,
        int devices = 1,
        pool::CoherenceMode coherence = pool::ChosenCoherence(),
        const std::optional<Incoherence>& incoherence =
            Incoherence::FromEnvironment()) {
    static std::atomic<int> count{0};
    pool::PoolSpec spec;
    spec.paths = {"test." + std::to_string(getpid()) + "." +
                  std::to_string(size) + "." + std::to_string(++count)};
    spec.bytes = bytes;
    spec.devices_per_path = devices;
    spec.coherence = coherence;
    std::mt19937_64 random;
    if (incoherence) {
      incoherence->ApplyTo(&spec);
      random.seed(incoherence->seed);
    }
    hosts_.emplace_back().pool = OrDie(pool::Pool::Create(spec, size));
    for (int rank = 0; rank < size; ++rank) {
      if (incoherence && rank > 0 && random() % 4 != 0) {
        hosts_.emplace_back().pool =
            OrDie(pool::Pool::Attach(spec, size, hosts_[0].pool->token()));
      }
      hosts_.back().ranks.push_back(rank);
      host_of_.push_back(hosts_.size() - 1);
      Register(hosts_.back().pool.get(), rank, 0, rank);
    }
    hosts_[0].pool->Unlink();
    for (Host& host : hosts_)
      host.peers = OrDie(Peers::Start(host.pool.get(), host.ranks,
                                      options.heartbeat_timeout_s));
    for (int rank = 0; rank < size; ++rank) {
      Host& host = hosts_[host_of_[rank]];
      endpoints_.push_back(std::make_unique<Endpoint>(
          host.pool.get(), host.peers.get(), &completions_, options, rank));
    }
  }

  int size() const { return static_cast<int>(endpoints_.size()); }
  Endpoint& endpoint(int rank) { return *endpoints_[rank]; }
  // Returns the pool as the rank's host sees it.
  pool::Pool& pool(int rank = 0) { return *hosts_[host_of_[rank]].pool; }
  Peers& peers(int rank) { return *hosts_[host_of_[rank]].peers; }

 private:
  struct Host {
    std::unique_ptr<pool::Pool> pool;
    std::unique_ptr<Peers> peers;
    std::vector<int> ranks;
  };

  std::vector<Host> hosts_;
  std::vector<size_t> host_of_;  // by rank
  Completions completions_;
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

  // Starts a call on an endpoint, and counts down when the call has finished.
  void StartCall(Endpoint& endpoint, const std::vector<int32_t>& members,
                 std::unique_ptr<Call> call) {
    call->done = [this](const Status& status) { Done(status); };
    if (auto status = endpoint.StartCall(members, std::move(call)))
      Done(*status);
  }

 private:
  std::mutex mutex_;
  std::condition_variable zero_;
  int left_;
  Status first_error_;
};

}  // namespace jax_cxl::comm

#endif  // JAX_CXL_TESTING_WORLD_WORLD_H_
