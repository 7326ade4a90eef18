#ifndef JAX_CXL_FFI_FAILURES_H_
#define JAX_CXL_FFI_FAILURES_H_

#include <deque>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "cc/base/status.h"

namespace jax_cxl::ffi {

// The errors that handlers returned to XLA, which passes on nothing but their
// text: Python finds code and details here when that text surfaces.
//
// All methods may be called from any thread.
class Failures {
 public:
  // The process's: a failure surfaces after the runtime that it ended.
  static Failures& Get();

  // "jax_cxl: PEER_LOST: rank 1 ...": what the handler is to return.
  std::string Record(const Status& status);

  // The newest failure whose text is in `text`.
  std::optional<Status> Find(std::string_view text) const;

 private:
  static constexpr size_t kRemembered = 64;

  mutable std::mutex mutex_;
  std::deque<Status> recent_;
};

}  // namespace jax_cxl::ffi

#endif  // JAX_CXL_FFI_FAILURES_H_
