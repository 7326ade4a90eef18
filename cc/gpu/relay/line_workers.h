#ifndef JAX_CXL_GPU_RELAY_LINE_WORKERS_H_
#define JAX_CXL_GPU_RELAY_LINE_WORKERS_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include "cc/comm/call/backoff.h"
#include "cc/pool/coherence/coherence.h"

namespace jax_cxl::comm {

// Cache lines that are being written back or dropped.
struct LineWork {
  std::atomic<int> left{0};  // number of pieces that are not done

  bool done() const { return left.load(std::memory_order_acquire) == 0; }
};

// Threads that write back and drop the cache lines of large ranges. One core
// does this at 20 to 24 GB/s, but a link carries 50 GB/s in each direction.
//
// One thread calls Start, and also Help. Threads that have had no work for a
// while sleep.
class LineWorkers {
 public:
  // `helpers` is the number of threads besides the thread that calls Start.
  // With 0, that thread does all work in Help. A thread takes `piece_bytes` at
  // a time, or more if the work is long.
  LineWorkers(const pool::Coherence& coherence, int helpers,
              size_t piece_bytes);
  ~LineWorkers();

  // Starts to write back all cache lines that `parts` touch, or to drop them if
  // `drop` is true. Once the work is done, the caller may ring a doorbell for
  // the lines that were written back, or let the device read the lines that
  // were dropped. Short work is done before Start returns.
  std::shared_ptr<LineWork> Start(std::span<const pool::Part> parts, bool drop);

  bool Help();

  // Returns true if more pieces wait than there are helpers awake. In that case
  // the thread that calls Start helps too, although it has other work.
  bool behind() const {
    return waiting_.load(std::memory_order_relaxed) +
               sleeping_.load(std::memory_order_relaxed) >
           threads_.size();
  }

 private:
  struct Piece {
    std::shared_ptr<LineWork> work;
    bool drop;
    std::vector<pool::Part> parts;
  };

  void Flush(std::span<const pool::Part> parts, bool drop) const;
  std::optional<Piece> Take();
  void Run();

  const pool::Coherence coherence_;
  const size_t piece_bytes_;
  SpinLock lock_;
  std::deque<Piece> pieces_;
  std::atomic<size_t> waiting_{0};  // piece count, read without lock

  std::atomic<uint32_t> calls_{0};   // of Start; sleeping threads watch it
  std::atomic<size_t> sleeping_{0};  // number of threads
  std::atomic<bool> stop_{false};
  std::vector<std::jthread> threads_;
};

}  // namespace jax_cxl::comm

#endif  // JAX_CXL_GPU_RELAY_LINE_WORKERS_H_
