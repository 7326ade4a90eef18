#ifndef JAX_CXL_BASE_AWAKE_CLOCK_H_
#define JAX_CXL_BASE_AWAKE_CLOCK_H_

#include <algorithm>
#include <chrono>
#include <mutex>

namespace jax_cxl {

// A clock that stands still while its process does: stopped by a signal,
// suspended with its host, or paused with its guest. The longest step between
// two looks at it is half a second, so somebody has to look more often than
// that. Any thread may look.
class AwakeClock {
 public:
  using Base = std::chrono::steady_clock;

  explicit AwakeClock(Base::time_point now = Base::now())
      : looked_(now), time_(now) {}

  // `now` is the time of the base clock.
  Base::time_point Now(Base::time_point now = Base::now()) {
    std::lock_guard lock(mutex_);
    time_ += std::clamp<Base::duration>(now - looked_, Base::duration::zero(),
                                        std::chrono::milliseconds(500));
    looked_ = std::max(looked_, now);
    return time_;
  }

 private:
  std::mutex mutex_;
  Base::time_point looked_;
  Base::time_point time_;
};

}  // namespace jax_cxl

#endif  // JAX_CXL_BASE_AWAKE_CLOCK_H_
