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
  // Runs one chunk after another, until other threads have taken all that are
  // left.
  void Work() {
    for (;;) {
      const uint64_t chunk = next.fetch_add(1, std::memory_order_relaxed);
      if (chunk >= count) return;
      const uint64_t begin = chunk * each;
      const Status status = run(begin, std::min(begin + each, size));
      if (std::lock_guard lock(mutex); !status.ok() && chunk < failed) {
        failed = chunk;
        failure = status;
      }
      done.count_down();
    }
  }

  const uint64_t size;
  const uint64_t each;
  const std::function<Status(uint64_t begin, uint64_t end)> run;
  const uint64_t count = (size + each - 1) / each;
  std::latch done{static_cast<std::ptrdiff_t>(count)};
  std::atomic<uint64_t> next = 0;
  std::mutex mutex{};
  uint64_t failed = UINT64_MAX;  // the first chunk that has failed
  Status failure{};
};

}  // namespace

Status RunChunks(xla::ffi::ThreadPool& pool, uint64_t size, uint64_t each,
                 std::function<Status(uint64_t begin, uint64_t end)> run) {
  // `chunks` is shared, because a thread that starts late still reads it after
  // this function has returned.
  std::shared_ptr<Chunks> chunks(new Chunks{size, each, std::move(run)});
  const int64_t threads = chunks->count > 1 ? pool.num_threads() : 1;
  for (int64_t i = 1; i < std::min<int64_t>(threads, chunks->count); ++i)
    pool.Schedule([chunks] { chunks->Work(); });
  chunks->Work();
  chunks->done.wait();
  return chunks->failure;
}

}  // namespace jax_cxl::ffi
