#ifndef JAX_CXL_FFI_CALL_EXECUTIONS_H_
#define JAX_CXL_FFI_CALL_EXECUTIONS_H_

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
  uint64_t Next(int32_t device, int64_t run_id);

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
