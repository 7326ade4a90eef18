#ifndef JAX_CXL_NCCL_LEVELS_REAL_INNER_H_
#define JAX_CXL_NCCL_LEVELS_REAL_INNER_H_

#include <atomic>
#include <memory>

#include "cc/base/status.h"
#include "cc/nccl/interface/abi.h"
#include "cc/nccl/levels/inner.h"

namespace jax_cxl::nccl {

// A communicator of the real NCCL.
class RealInner final : public Inner {
 public:
  // Returns the id of a new communicator. Fails if there is no real NCCL.
  static Result<NcclUniqueId> NewId();
  // Waits for the other ranks of the host. Uses the current CUDA device.
  static Result<std::unique_ptr<Inner>> Open(const NcclUniqueId& id, int size,
                                             int rank);
  // Waits for no other rank.
  ~RealInner() override;
  RealInner(const RealInner&) = delete;
  RealInner& operator=(const RealInner&) = delete;

  Status StartGroup() override;
  Status EndGroup() override;
  Status Add(const Operation& operation) override;
  Status Check() override;
  void Abort() override;

 private:
  explicit RealInner(void* communicator) : communicator_(communicator) {}

  std::atomic<void*> communicator_;  // ncclComm_t; null after Abort
};

}  // namespace jax_cxl::nccl

#endif  // JAX_CXL_NCCL_LEVELS_REAL_INNER_H_
