#ifndef JAX_CXL_NCCL_LEVELS_INNER_H_
#define JAX_CXL_NCCL_LEVELS_INNER_H_

#include "cc/base/status.h"
#include "cc/nccl/calls/operation.h"

namespace jax_cxl::nccl {

// A communicator of the ranks of one host. It belongs to the real NCCL, or
// is a model in tests. Its ranks are the places in the host.
//
// One thread at a time calls the functions that are not marked otherwise.
class Inner {
 public:
  virtual ~Inner() = default;

  // Operations between these two calls of a thread, including those of other
  // objects, start together. A thread that serves several ranks needs that.
  virtual Status StartGroup() = 0;
  virtual Status EndGroup() = 0;

  // Enqueues an operation.
  virtual Status Add(const Operation& operation) = 0;

  // Returns why operations cannot complete, or OK. Another thread calls this.
  virtual Status Check() = 0;
  // Ends all operations. Any thread calls this once, but not while Check runs.
  virtual void Abort() = 0;
};

}  // namespace jax_cxl::nccl

#endif  // JAX_CXL_NCCL_LEVELS_INNER_H_
