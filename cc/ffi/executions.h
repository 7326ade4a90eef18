#ifndef JAX_CXL_FFI_EXECUTIONS_H_
#define JAX_CXL_FFI_EXECUTIONS_H_

#include <array>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "cc/base/status.h"

namespace jax_cxl::ffi {

// Numbers the executions of one call of a program, on each device of this
// process. A call that every rank executes equally often has the same numbers
// on every rank, whether a rank has compiled the program or has loaded it from
// a cache: XLA's own launch ids differ between the two.
//
// Devices start the launches of one program in order. A loop executes a call
// several times in a launch, also in order.
//
// Safe to use from any thread.
class Executions {
 public:
  struct Number {
    uint64_t launch;     // how many launches of the program executed it before
    uint64_t execution;  // how often it was executed in this launch before
  };

  // The counts of call number `site` of programs of this name between these
  // groups of ranks, all of which run each of them. Programs that XLA loads
  // again go on with the counts that they had.
  static std::shared_ptr<Executions> Of(
      std::string_view program, int64_t site,
      const std::vector<std::vector<int32_t>>& groups);

  // The next execution by a device, in the launch to which XLA gave `run_id`.
  // `job` counts the starts of the runtime in this process: each job begins
  // with new numbers. Error: a launch started before an earlier one, so that
  // ranks could match the wrong calls.
  Result<Number> Next(uint64_t job, int32_t device, int64_t run_id);

 private:
  // Launches that a device ran last. More than that are never under way at
  // once: XLA admits 32 to a device.
  struct Device {
    static constexpr int kRemembered = 64;
    struct Launch {
      int64_t run_id = 0;
      uint64_t number = 0;
      uint64_t executions = 0;
    };
    std::array<Launch, kRemembered> launches = {};
    uint64_t started = 0;
  };

  std::mutex mutex_;
  uint64_t job_ = 0;
  std::unordered_map<int32_t, Device> devices_;
};

}  // namespace jax_cxl::ffi

#endif  // JAX_CXL_FFI_EXECUTIONS_H_
