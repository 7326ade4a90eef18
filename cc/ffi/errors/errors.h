#ifndef JAX_CXL_FFI_ERRORS_ERRORS_H_
#define JAX_CXL_FFI_ERRORS_ERRORS_H_

#include <deque>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "cc/base/status.h"
#include "xla/ffi/api/ffi.h"

namespace jax_cxl::ffi {

// Converts a status to XLA's type of error or success. An error is also
// recorded in Failures.
xla::ffi::Error ToFfiError(const Status& status);

// Returns the error for a call whose buffers do not match its lowering. `what`
// is the name of the call.
Status NotLowered(std::string_view what);

// The last errors that handlers have returned to XLA. XLA passes on only their
// texts. When Python sees such a text in an exception, it looks up the code and
// the details of the error here.
//
// Thread-safe.
class Failures {
 public:
  // Returns the instance of this extension module. It outlives the runtime,
  // because an error may surface after the runtime has ended.
  static Failures& Get();
  // From now on, makes Get return `failures`, the instance of another extension
  // module. This is needed because Python looks up failures in jax_cxl._core,
  // but handlers for GPUs fail in jax_cxl._cuda.
  static void Use(Failures* failures);

  // Remembers `status`, and returns its text for XLA, such as "jax_cxl:
  // PEER_LOST: rank 1 ...".
  std::string Record(const Status& status);

  // Returns the newest failure whose text occurs in `text`, the message of an
  // exception.
  std::optional<Status> Find(std::string_view text) const;

 private:
  static constexpr size_t kRemembered = 64;

  mutable std::mutex mutex_;
  std::deque<Status> recent_;
};

}  // namespace jax_cxl::ffi

#endif  // JAX_CXL_FFI_ERRORS_ERRORS_H_
