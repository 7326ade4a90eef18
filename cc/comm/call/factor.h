#ifndef JAX_CXL_COMM_CALL_FACTOR_H_
#define JAX_CXL_COMM_CALL_FACTOR_H_

#include <cstdint>

namespace jax_cxl::comm {

// The factor by which a rank multiplies its input in a premultiplied sum. It is
// one element of the call's dtype.
struct Factor {
  uint64_t bits = 0;         // of the element, unless `at` is set
  const void* at = nullptr;  // where the device reads it whenever the call runs
};

}  // namespace jax_cxl::comm

#endif  // JAX_CXL_COMM_CALL_FACTOR_H_
