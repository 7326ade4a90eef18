#include "cc/ffi/store/chunks.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <latch>
#include <memory>
#include <mutex>
#include <utility>

#include "cc/base/status.h"

namespace jax_cxl::ffi {
namespace {

struct Chunks {
  Chunks(uint64_t count, std::function<Status(uint64_t chunk)> run)
      : count(count), run(std::move(run)) {}

  // Runs chunks until there are none left.
  void Work() {
    for (;;) {
      const uint64_t chunk = next.fetch_add(1, std::memory_order_relaxed);
      if (chunk >= count) return;
      if (const Status status = run(chunk); !status.ok()) {
        std::lock_guard lock(mutex);
        if (chunk < failed) {
          failed = chunk;
          failure = status;
        }
      }
      done.count_down();
    }
  }

  const uint64_t count;
  const std::function<Status(uint64_t chunk)> run;
  std::latch done{static_cast<std::ptrdiff_t>(count)};
  std::atomic<uint64_t> next = 0;
  std::mutex mutex;
  uint64_t failed = UINT64_MAX;  // the first chunk that has failed
  Status failure;
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
  chunks->done.wait();
  return chunks->failure;
}

}  // namespace jax_cxl::ffi
