#ifndef JAX_CXL_FFI_ERRORS_FAILURES_H_
#define JAX_CXL_FFI_ERRORS_FAILURES_H_

#include <deque>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "cc/base/status.h"

namespace jax_cxl::ffi {

// The errors that handlers have returned to XLA. XLA passes on only their text,
// so Python looks up code and details here when it sees the text.
//
// Thread-safe.
class Failures {
 public:
  // Returns the instance of this module. It outlives the runtime, because an
  // error may surface after the runtime has ended.
  static Failures& Get();
  // From now on, makes Get return the instance of another module. This is
  // needed because Python looks up failures in jax_cxl._core, but handlers for
  // GPUs fail in jax_cxl._cuda.
  static void Use(Failures* failures);

  // Remembers `status`. Returns the text for XLA: "jax_cxl: PEER_LOST: rank 1
  // ...".
  std::string Record(const Status& status);

  // Returns the newest failure whose text is part of `text`.
  std::optional<Status> Find(std::string_view text) const;

 private:
  static constexpr size_t kRemembered = 64;

  mutable std::mutex mutex_;
  std::deque<Status> recent_;
};

}  // namespace jax_cxl::ffi

#endif  // JAX_CXL_FFI_ERRORS_FAILURES_H_
