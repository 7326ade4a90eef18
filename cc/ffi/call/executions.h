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
// process. If all ranks execute a call equally often, its executions have the
// same numbers on all ranks, even if some ranks compile the program and others
// load it from a cache. XLA's own launch ids would differ between these ranks.
//
// A device starts the launches of one program in order. If a loop executes a
// call several times in a launch, the device starts these executions in order,
// too.
//
// Thread-safe.
class Executions {
 public:
  struct Number {
    uint64_t launch;     // how many earlier launches executed the call
    uint64_t execution;  // how often this launch executed it before
  };

  // Returns the counts of the call with number `site`, in all programs that are
  // named `program` and have these groups of ranks. Every rank of the groups
  // must run all of these programs. If XLA loads a program again, its counts
  // continue.
  static std::shared_ptr<Executions> Of(
      std::string_view program, int64_t site,
      const std::vector<std::vector<int32_t>>& groups);

  // Returns the number of the next execution by a device, in the launch with
  // XLA's id `run_id`. `job` counts the starts of the runtime in this process;
  // each job starts with new numbers. Fails if the launches did not start in
  // the order of their ids, because ranks could then match different calls.
  Result<Number> Next(uint64_t job, int32_t device, int64_t run_id);

 private:
  struct Launch {
    int64_t run_id;
    uint64_t number;
    uint64_t executions;
  };
  // How many launches of a device are remembered. This is enough, because XLA
  // lets at most 32 launches be under way at the same time.
  static constexpr int kRemembered = 64;

  std::mutex mutex_;
  uint64_t job_ = 0;
  // The last kRemembered launches of each device.
  std::unordered_map<int32_t, std::deque<Launch>> launches_;
};

}  // namespace jax_cxl::ffi

#endif  // JAX_CXL_FFI_CALL_EXECUTIONS_H_
