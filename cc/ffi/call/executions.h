#ifndef JAX_CXL_FFI_CALL_EXECUTIONS_H_
#define JAX_CXL_FFI_CALL_EXECUTIONS_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "cc/base/status.h"

namespace jax_cxl::ffi {

// Counts the executions of one call of a program, on each device of this
// process. If every rank executes a call equally often, the numbers are the
// same on every rank, even if some ranks compile the program and others load it
// from a cache. XLA's own launch ids would differ between these ranks.
//
// Devices start the launches of one program in order. A loop executes a call
// several times in a launch, also in order.
//
// Thread-safe.
class Executions {
 public:
  struct Number {
    uint64_t launch;     // number of earlier launches that executed it
    uint64_t execution;  // number of earlier executions in this launch
  };

  // Returns the counts for call number `site` of programs of this name between
  // these groups of ranks. All ranks of the groups must run each such program.
  // If XLA loads a program again, its counts continue.
  static std::shared_ptr<Executions> Of(
      std::string_view program, int64_t site,
      const std::vector<std::vector<int32_t>>& groups);

  // Returns the number of the next execution by a device, in the launch with
  // XLA's id `run_id`. `job` counts the starts of the runtime in this process;
  // each job starts with new numbers. Fails if a launch started before an
  // earlier one, because ranks could then match the wrong calls.
  Result<Number> Next(uint64_t job, int32_t device, int64_t run_id);

 private:
  struct Launch {
    int64_t run_id;
    uint64_t number;
    uint64_t executions;
  };
  // A device never has more launches than this under way, because XLA admits at
  // most 32.
  static constexpr int kRemembered = 64;

  std::mutex mutex_;
  uint64_t job_ = 0;
  // The last launches of each device.
  std::unordered_map<int32_t, std::deque<Launch>> launches_;
};

}  // namespace jax_cxl::ffi

#endif  // JAX_CXL_FFI_CALL_EXECUTIONS_H_
