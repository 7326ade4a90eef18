#include "cc/ffi/store/chunks.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>

#include "cc/base/status.h"

namespace jax_cxl::ffi {
namespace {

class Chunks {
 public:
  using Run = std::function<Status(uint64_t chunk)>;

  Chunks(uint64_t count, Run run) : count_(count), run_(std::move(run)) {}

  void Work() {
    for (;;) {
      const uint64_t chunk = next_.fetch_add(1, std::memory_order_relaxed);
      if (chunk >= count_) return;
      const Status status = run_(chunk);
      std::lock_guard lock(mutex_);
      if (!status.ok() && chunk < failed_) {
        failed_ = chunk;
        status_ = status;
      }
      if (++done_ == count_) all_done_.notify_one();
    }
  }

  Status Wait() {
    std::unique_lock lock(mutex_);
    all_done_.wait(lock, [&] { return done_ == count_; });
    return status_;
  }

 private:
  const uint64_t count_;
  const Run run_;
  std::atomic<uint64_t> next_ = 0;
  std::mutex mutex_;
  std::condition_variable all_done_;
  uint64_t done_ = 0;
  uint64_t failed_ = UINT64_MAX;
  Status status_;
};

}  // namespace

Status RunChunks(xla::ffi::ThreadPool& pool, uint64_t count,
                 std::function<Status(uint64_t chunk)> run) {
  // Threads that start late look at the chunks after this function's end.
  auto chunks = std::make_shared<Chunks>(count, std::move(run));
  const auto threads = static_cast<uint64_t>(
      std::max<int64_t>(count > 1 ? pool.num_threads() : 1, 1));
  for (uint64_t i = 1; i < std::min(threads, count); ++i)
    pool.Schedule([chunks] { chunks->Work(); });
  chunks->Work();
  return chunks->Wait();
}

}  // namespace jax_cxl::ffi
