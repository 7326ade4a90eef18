#ifndef JAX_CXL_FFI_CALL_SITE_H_
#define JAX_CXL_FFI_CALL_SITE_H_

#include <array>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "cc/comm/call.h"
#include "xla/ffi/api/ffi.h"

namespace jax_cxl::ffi {

// One custom call of one compiled program: what its attributes say, and what
// tells its executions apart from those of any other call, on every rank alike.
//
// XLA makes one for each call when it loads a program. Attributes do not tell
// calls apart: a jitted inner function that is called k times is lowered once.
// The order in which XLA makes the sites does (cc/ffi/program_sites.h).
//
// NextIdentity is safe to call from any thread; the rest is constant.
class CallSite {
 public:
  // Registered with XLA under this id before any handler that uses it.
  static xla::ffi::TypeId id;

  // Reads the attributes that jax_cxl/_lowering.py writes.
  static xla::ffi::ErrorOr<std::unique_ptr<CallSite>> Make(
      xla::ffi::Dictionary attributes);

  // What tells the calls of a program apart, for ProgramSites::NoteLine.
  static std::string LineKey(std::string_view name, int op, int reduce_op,
                             int dtype, int64_t count);

  // Fills in everything but buffers, rank and identity.
  const comm::Call& prototype() const { return prototype_; }
  // The group that `rank` belongs to; null if it is in none.
  const std::vector<int32_t>* GroupOf(int rank) const;

  // For which generation of the runtime the call was lowered.
  int generation() const { return generation_; }

  // The identity of this device's next execution of the call in launch
  // `run_id`: a loop executes the same call several times.
  uint64_t NextIdentity(int64_t run_id, int32_t device_ordinal);

 private:
  CallSite() = default;

  comm::Call prototype_;
  std::vector<std::vector<int32_t>> groups_;
  std::unordered_map<int32_t, int> group_of_rank_;
  uint64_t key_ = 0;
  int generation_ = 0;

  // Executions seen in the launches that a device ran last. More launches than
  // that are never under way at once: XLA admits 32 to a device.
  struct Launches {
    static constexpr int kRemembered = 64;
    struct Launch {
      int64_t run_id = 0;
      uint64_t executions = 0;
    };
    std::array<Launch, kRemembered> launches = {};
    int oldest = 0;
  };
  std::mutex mutex_;
  std::unordered_map<int32_t, Launches> launches_;
};

}  // namespace jax_cxl::ffi

#endif  // JAX_CXL_FFI_CALL_SITE_H_
