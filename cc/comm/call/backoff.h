#ifndef JAX_CXL_COMM_CALL_BACKOFF_H_
#define JAX_CXL_COMM_CALL_BACKOFF_H_

#include <atomic>
#include <chrono>

namespace jax_cxl::comm {

// How a thread waits for the pool: it spins while an answer is likely, then
// yields the core to other threads, then sleeps for a fraction of the time
// waited so far. A long wait costs almost no processor time. A short wait, or
// one that shares the core with the thread it waits for, ends promptly.
//
// The duration of a yield shows whether other threads use the core. If they do,
// the awaited thread is probably among them, and the next wait yields early. So
// keep the object from wait to wait.
//
// Not thread-safe: use one object per waiting thread.
class Backoff {
 public:
  using Clock = std::chrono::steady_clock;

  // Call it after progress: the next wait starts from the beginning.
  void Reset() { polls_ = 0; }

  // Call it after each poll without progress.
  void Pause();

  // Returns true in the first phases, which make no system call but
  // sched_yield.
  bool spinning() const { return polls_ <= kYields; }

 private:
  static constexpr int kYields = 1000;

  void Yield();

  int polls_ = 0;
  Clock::time_point started_;
  bool shares_core_ = false;
  int vain_yields_ = 0;  // in a row
};

// Threads must hold this lock for less time than a system call takes.
class SpinLock {
 public:
  void lock() {
    Backoff backoff;
    while (locked_.test_and_set(std::memory_order_acquire)) backoff.Pause();
  }
  void unlock() { locked_.clear(std::memory_order_release); }

 private:
  std::atomic_flag locked_;
};

}  // namespace jax_cxl::comm

#endif  // JAX_CXL_COMM_CALL_BACKOFF_H_
