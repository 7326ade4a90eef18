#ifndef JAX_CXL_COMM_CALL_BACKOFF_H_
#define JAX_CXL_COMM_CALL_BACKOFF_H_

#include <atomic>
#include <chrono>

namespace jax_cxl::comm {

// How a thread waits for something in the pool. It spins while an answer is
// likely soon, then yields the core to other threads, then sleeps for a
// fraction of the time that it has waited so far. So a long wait costs almost
// no processor time, and a short wait ends promptly. A wait also ends promptly
// if the awaited thread needs the same core, because the waiting thread yields.
//
// The duration of a yield shows whether other threads use the core. If they do,
// the awaited thread is probably one of them, and the next wait yields after
// fewer spins. The object remembers this, so use the same object for all waits
// of a thread.
//
// Not thread-safe: use one object per waiting thread.
class Backoff {
 public:
  using Clock = std::chrono::steady_clock;

  // Call this after progress. The next wait then begins by spinning.
  void Reset() { polls_ = 0; }

  // Call this after each poll that finds no progress.
  void Pause();

  // Returns true while the thread still spins or yields, but does not sleep.
  bool spinning() const { return polls_ <= kYields; }

 private:
  static constexpr int kYields = 1000;

  void Yield();

  int polls_ = 0;
  Clock::time_point started_;
  bool shares_core_ = false;
  int vain_yields_ = 0;  // in a row
};

// A lock for short critical sections: hold it for less time than a system call
// takes.
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
