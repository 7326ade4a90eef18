#ifndef JAX_CXL_BASE_CUDA_POOL_REGISTRATION_H_
#define JAX_CXL_BASE_CUDA_POOL_REGISTRATION_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "cc/base/status.h"

namespace jax_cxl::comm {

// Makes mapped memory accessible to every device of the process, at the host's
// addresses, while the object lives.
class PoolRegistration {
 public:
  // Fails with kUnimplemented if devices of this process cannot use the memory.
  // The message contains the reason.
  static Result<std::unique_ptr<PoolRegistration>> Create(
      std::byte* base, uint64_t bytes, const std::vector<int>& devices);
  ~PoolRegistration();

 private:
  PoolRegistration() = default;

  std::vector<std::byte*> pieces_;
};

}  // namespace jax_cxl::comm

#endif  // JAX_CXL_BASE_CUDA_POOL_REGISTRATION_H_
