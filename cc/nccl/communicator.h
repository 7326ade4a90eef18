#ifndef JAX_CXL_NCCL_COMMUNICATOR_H_
#define JAX_CXL_NCCL_COMMUNICATOR_H_

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "cc/base/status.h"
#include "cc/nccl/calls/operation.h"
#include "cc/nccl/calls/reductions.h"
#include "cc/nccl/compare/comparison.h"
#include "cc/nccl/device.h"
#include "cc/nccl/interface/abi.h"
#include "cc/nccl/interface/settings.h"
#include "cc/nccl/interface/unique_id.h"
#include "cc/nccl/job.h"

namespace jax_cxl::nccl {

// Makes the device of a communicator's rank, and connects it with the devices
// of the other ranks.
using MakeDevice = std::function<Result<std::unique_ptr<Device>>(
    Job* job, const std::atomic<bool>& cancel)>;

// Returns the blocks of all ranks, which wait for each other.
using Gather = std::function<Result<std::vector<std::byte>>(
    std::span<const std::byte> block)>;

// Makes this rank's communicator of the real library. The ranks agree on its id
// by `gather`. `why` is their reason to take that library, and `problem`
// whether the user has to know.
using MakeReal = std::function<Result<void*>(
    const Gather& gather, const std::string& why, bool problem)>;

// One rank of a communicator that goes through the pool: what ncclComm_t points
// to.
//
// Thread-safe.
class Communicator {
 public:
  // `ordinal` is the number of the CUDA device.
  Communicator(const PoolToken& token, int rank, int size, int ordinal,
               bool blocking, MakeDevice make_device);
  // Ends the calls under way, unless Finalize was called before.
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  // Opens the communicator in the pool in which its ranks meet. If all of them
  // are on one host, or if one of them cannot use the pool, makes it become one
  // of the real library instead. All ranks do the same.
  Status Open(const Settings& settings, const MakeReal& make_real);
  // Starts `open` on a thread of the communicator. Until it has ended, the
  // communicator is in progress.
  void OpenLater(std::function<Status()> open);

  // OK, or why the communicator can no longer be used.
  Status status() const;
  bool in_progress() const { return opening_; }
  // Returns why `function` cannot use the communicator now, or OK.
  Status CheckReady(std::string_view function) const;

  // The real library's communicator, if the program has a handle of this one
  // and its ranks could not use a pool; otherwise null.
  void* real() const { return real_; }

  int rank() const { return rank_; }
  int size() const { return size_; }
  int ordinal() const { return ordinal_; }
  bool blocking() const { return blocking_; }
  const PoolToken& token() const { return token_; }
  Reductions& reductions() { return reductions_; }
  Job* job() { return job_.get(); }
  // Null unless the communicator is open.
  Device* device() { return device_.get(); }
  // Compares calls from now on.
  void Compare(std::unique_ptr<Comparison> comparison);
  // Null unless calls are compared.
  Comparison* comparison() { return comparison_.get(); }
  // Held while the device is used.
  std::mutex& mutex() { return mutex_; }
  // Returns the token of the next communicator of some of the ranks, without
  // asking them. Each call with the same ranks gives another token. Ranks
  // outside the set do not know of the call, so calls are counted for each set
  // separately.
  PoolToken NextToken(const std::vector<int>& ranks);

  // Ends the communicator with an error, which the other ranks get too.
  void Fail(const Status& status);
  // Waits for the calls that are enqueued.
  Status Finalize();
  // Ends all calls. Returns soon.
  void Abort();
  // Stops watching the calls.
  void StopWatching();
  // Says how many calls NVIDIA's library has repeated with the same results.
  // `so_far` is true if comparisons may be under way.
  void SayCompared(bool so_far);

 private:
  // Opens the communicator in the pool in which this rank has met the others.
  Status OpenIn(std::unique_ptr<Job> job);
  // Frees what OpenIn made.
  void Close();
  void StartWatching();
  void Watch();
  // Returns why another rank will make no more calls, or OK.
  Status FindLost() const;
  void SetStatus(const Status& status);

  [[maybe_unused]] const uint64_t magic_ = kCommunicatorMagic;  // stays first
  const PoolToken token_;
  const int rank_;
  const int size_;
  const int ordinal_;
  const bool blocking_;
  const MakeDevice make_device_;
  Reductions reductions_;

  std::mutex mutex_;
  std::unique_ptr<Job> job_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<Comparison> comparison_;         // set under status_mutex_
  std::map<std::vector<int>, uint64_t> children_;  // under mutex_

  std::atomic<bool> opening_{false};
  std::atomic<bool> aborted_{false};
  std::atomic<void*> real_{nullptr};
  std::thread opener_;

  mutable std::mutex status_mutex_;
  std::condition_variable stopped_;
  bool stop_ = false;
  Status status_;
  std::thread watcher_;
};

}  // namespace jax_cxl::nccl

#endif  // JAX_CXL_NCCL_COMMUNICATOR_H_
