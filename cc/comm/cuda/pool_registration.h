#ifndef JAX_CXL_COMM_CUDA_POOL_REGISTRATION_H_
#define JAX_CXL_COMM_CUDA_POOL_REGISTRATION_H_

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "cc/base/status.h"
#include "cc/pool/pool.h"

namespace jax_cxl::comm {

// Makes the mapped pool accessible to every device of the process, at the
// host's addresses, for as long as it lives.
class PoolRegistration {
 public:
  // Errors: kUnimplemented, if devices of this process cannot use the pool
  // themselves; the message says why.
  static Result<std::unique_ptr<PoolRegistration>> Create(
      const pool::Pool& pool, const std::vector<int>& devices);
  ~PoolRegistration();

 private:
  PoolRegistration() = default;

  std::vector<std::byte*> pieces_;
};

}  // namespace jax_cxl::comm

#endif  // JAX_CXL_COMM_CUDA_POOL_REGISTRATION_H_
