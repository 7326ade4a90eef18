#include "cc/ffi/call/executions.h"

#include <map>
#include <ranges>
#include <string>
#include <tuple>

namespace jax_cxl::ffi {

std::shared_ptr<Executions> Executions::Of(
    std::string_view program, int64_t site,
    const std::vector<std::vector<int32_t>>& groups) {
  using Key =
      std::tuple<std::string, int64_t, std::vector<std::vector<int32_t>>>;
  // Never destroyed: XLA's threads may still execute calls while the process
  // exits.
  static auto& mutex = *new std::mutex;
  static auto& all = *new std::map<Key, std::shared_ptr<Executions>>;
  std::lock_guard lock(mutex);
  std::shared_ptr<Executions>& found =
      all[{std::string(program), site, groups}];
  if (found == nullptr) found = std::make_shared<Executions>();
  return found;
}

Result<Executions::Number> Executions::Next(uint64_t job, int32_t device,
                                            int64_t run_id) {
  std::lock_guard lock(mutex_);
  if (job != job_) {
    launches_.clear();
    job_ = job;
  }
  std::deque<Launch>& launches = launches_[device];
  for (Launch& launch : launches | std::views::reverse)
    if (launch.run_id == run_id)
      return Number{launch.number, launch.executions++};
  uint64_t number = 0;
  if (!launches.empty()) {
    // XLA increments the launch id of a program, as a number of 32 bits. When
    // XLA loads a program again, its ids may start anywhere. So only an id that
    // is a little lower than the last one shows that launches started out of
    // order.
    const int64_t last = launches.back().run_id;
    const auto ahead = static_cast<int32_t>(static_cast<uint32_t>(last) -
                                            static_cast<uint32_t>(run_id));
    if (ahead > 0 && ahead < kRemembered)
      return Error(Code::kInternal, "XLA started launch ", last,
                   " of a program before its launch ", run_id,
                   ": please report this to jax_cxl");
    number = launches.back().number + 1;
  }
  launches.push_back({run_id, number, 1});
  if (launches.size() > kRemembered) launches.pop_front();
  return Number{number, 0};
}

}  // namespace jax_cxl::ffi
