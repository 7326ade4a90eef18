#ifndef JAX_CXL_FFI_CALL_EXECUTIONS_H_
#define JAX_CXL_FFI_CALL_EXECUTIONS_H_

#include <algorithm>
#include <cstdint>
#include <deque>
#include <mutex>
#include <unordered_map>

namespace jax_cxl::ffi {

// Counts how often each launch of a program executes one call, on each device
// of this process. If a loop executes the call several times in a launch, the
// device starts these executions in order. Launches may start in any order, and
// at the same time.
//
// Thread-safe.
class Executions {
 public:
  // Returns how often the launch with XLA's id `run_id` has executed the call
  // on this device before.
  uint64_t Next(int32_t device, int64_t run_id) {
    std::lock_guard lock(mutex_);
    std::deque<Launch>& launches = launches_[device];
    const auto found = std::find_if(
        launches.rbegin(), launches.rend(),
        [run_id](const Launch& launch) { return launch.run_id == run_id; });
    if (found == launches.rend()) {
      launches.push_back({run_id, 1});
      if (launches.size() > kRemembered) launches.pop_front();
      return 0;
    }
    // Move the launch to the end, so that it is not forgotten while it loops.
    std::rotate(launches.rbegin(), found, found + 1);
    return launches.back().executions++;
  }

 private:
  struct Launch {
    int64_t run_id;
    uint64_t executions;
  };
  // How many launches of a device are remembered: those that executed the call
  // last. This is enough, because XLA lets at most 32 launches be under way at
  // the same time.
  static constexpr size_t kRemembered = 64;

  std::mutex mutex_;
  // By device. The launch that executed the call last is at the end.
  std::unordered_map<int32_t, std::deque<Launch>> launches_;
};

}  // namespace jax_cxl::ffi

#endif  // JAX_CXL_FFI_CALL_EXECUTIONS_H_
