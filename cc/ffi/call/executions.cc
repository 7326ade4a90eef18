#include "cc/ffi/call/executions.h"

#include <algorithm>

namespace jax_cxl::ffi {

uint64_t Executions::Next(int32_t device, int64_t run_id) {
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

}  // namespace jax_cxl::ffi
