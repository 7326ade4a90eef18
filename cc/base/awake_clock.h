#ifndef JAX_CXL_BASE_AWAKE_CLOCK_H_
#define JAX_CXL_BASE_AWAKE_CLOCK_H_

#include <algorithm>
#include <chrono>
#include <mutex>

namespace jax_cxl {

// A clock that stops while its process is stopped by a signal, and while its
// host or virtual machine is suspended. To leave out such pauses, the clock
// advances by at most half a second between two calls of Now. So some thread
// has to call Now at least twice a second, or the clock falls behind.
//
// Thread-safe.
class AwakeClock {
 public:
  using Base = std::chrono::steady_clock;

  explicit AwakeClock(Base::time_point now = Base::now())
      : read_(now), time_(now) {}

  // Returns this clock's time. `now` is the time of the base clock; tests set
  // it.
  Base::time_point Now(Base::time_point now = Base::now()) {
    std::lock_guard lock(mutex_);
    time_ += std::clamp<Base::duration>(now - read_, Base::duration::zero(),
                                        std::chrono::milliseconds(500));
    read_ = std::max(read_, now);
    return time_;
  }

 private:
  std::mutex mutex_;
  Base::time_point read_;
  Base::time_point time_;
};

}  // namespace jax_cxl

#endif  // JAX_CXL_BASE_AWAKE_CLOCK_H_
