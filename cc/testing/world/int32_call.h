#ifndef JAX_CXL_TESTING_WORLD_INT32_CALL_H_
#define JAX_CXL_TESTING_WORLD_INT32_CALL_H_

#include <cstddef>
#include <cstdint>
#include <memory>

#include "cc/comm/call/call.h"

namespace jax_cxl::comm {

// Returns a call of int32 elements.
inline std::unique_ptr<Call> Int32Call(plan::Op op, uint64_t identity,
                                       int ranks, int rank, uint64_t count,
                                       const int32_t* input = nullptr,
                                       int32_t* output = nullptr) {
  auto call = std::make_unique<Call>();
  call->identity = identity;
  call->request.op = op;
  call->request.num_ranks = ranks;
  call->request.rank = rank;
  call->request.count = count;
  call->request.element_bytes = 4;
  call->dtype = DType::kInt32;
  call->input = reinterpret_cast<const std::byte*>(input);
  call->output = reinterpret_cast<std::byte*>(output);
  call->name = "test";
  return call;
}

}  // namespace jax_cxl::comm

#endif  // JAX_CXL_TESTING_WORLD_INT32_CALL_H_
