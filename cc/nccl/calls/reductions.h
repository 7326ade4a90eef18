#ifndef JAX_CXL_NCCL_CALLS_REDUCTIONS_H_
#define JAX_CXL_NCCL_CALLS_REDUCTIONS_H_

#include <map>
#include <mutex>
#include <string_view>

#include "cc/base/status.h"
#include "cc/comm/call/call.h"

namespace jax_cxl::nccl {

// The premultiplied sums that a program has made for a communicator. Each has a
// number, which differs from those of all sums of other communicators in the
// process.
//
// Thread-safe.
class Reductions {
 public:
  // Makes a premultiplied sum of elements of a type (ncclDataType_t), and
  // returns its number. `residence` (ncclScalarResidence_t) determines who
  // reads `scalar`: this function, or the device in each call.
  Result<int> Add(const void* scalar, int type, int residence);

  // Remove and Find fail with kInvalidArgument if there is no such sum.
  Status Remove(int number);
  // Returns the factor for a call of `function`. Fails if the call has another
  // type.
  Result<comm::Factor> Find(std::string_view function, int number,
                            int type) const;

 private:
  struct PremultipliedSum {
    int type;
    comm::Factor factor;
  };

  mutable std::mutex mutex_;
  std::map<int, PremultipliedSum> sums_;  // by number
};

}  // namespace jax_cxl::nccl

#endif  // JAX_CXL_NCCL_CALLS_REDUCTIONS_H_
