#ifndef JAX_CXL_COMM_CALL_BACKOFF_H_
#define JAX_CXL_COMM_CALL_BACKOFF_H_

#include <chrono>

namespace jax_cxl::comm {

// The one way to wait for the pool: spin while an answer is likely, then let
// others have the core, then sleep for a fraction of the time waited so far. A
// rank that waits for long costs next to nothing; one that waits briefly, or
// shares its core with the rank that it waits for, answers at once.
//
// How long others keep the core when they are offered it tells whether there
// are any. Where there are, who has the answer is likely to be among them, and
// the next wait starts with an offer: keep the object from wait to wait.
//
// Not thread-safe: one per waiting thread.
class Backoff {
 public:
  using Clock = std::chrono::steady_clock;

  // Something happened: start over.
  void Reset() { polls_ = 0; }

  // Call after each poll that found nothing.
  void Pause();

  // True in the first phases, when no system call but sched_yield was made.
  bool spinning() const { return polls_ <= kYields; }

 private:
  static constexpr int kYields = 1000;

  void Yield();

  int polls_ = 0;
  Clock::time_point started_;
  bool shares_core_ = false;
  int vain_yields_ = 0;  // in a row
};

}  // namespace jax_cxl::comm

#endif  // JAX_CXL_COMM_CALL_BACKOFF_H_
