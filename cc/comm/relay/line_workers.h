#ifndef JAX_CXL_COMM_RELAY_LINE_WORKERS_H_
#define JAX_CXL_COMM_RELAY_LINE_WORKERS_H_

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "cc/pool/coherence/coherence.h"

namespace jax_cxl::comm {

// Lines that are being written back, or dropped.
struct LineWork {
  std::vector<pool::Part> parts;
  bool drop = false;
  std::atomic<int> left{0};  // pieces yet to be done

  bool done() const { return left.load(std::memory_order_acquire) == 0; }
};

// Threads that write back and drop the lines of large ranges. One core does so
// at 20 to 24 GB/s, a link carries 50 GB/s each way.
//
// Start is called by one thread, which helps by Help; threads that have had
// nothing to do for a while sleep.
class LineWorkers {
 public:
  // `helpers`: threads besides the one that calls Start; 0 leaves all to that.
  LineWorkers(const pool::Coherence& coherence, int helpers);
  ~LineWorkers();
  LineWorkers(const LineWorkers&) = delete;

  // Starts to write back (or drop) all lines that `parts` touch. Whoever sees
  // that the work is done may ring, or let the device read. Short work is done
  // at once.
  std::shared_ptr<LineWork> Start(std::vector<pool::Part> parts, bool drop);

  // Does a piece of what has been started; false if there is none.
  bool Help();

 private:
  struct Piece {
    std::shared_ptr<LineWork> work;
    size_t first = 0, last = 0;  // of the parts
  };

  void Execute(const Piece& piece) const;
  void Run();

  const pool::Coherence coherence_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<Piece> pieces_;
  std::atomic<size_t> waiting_{0};  // pieces, for those that look without lock
  bool stop_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace jax_cxl::comm

#endif  // JAX_CXL_COMM_RELAY_LINE_WORKERS_H_
