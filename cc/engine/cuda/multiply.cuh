#ifndef JAX_CXL_ENGINE_CUDA_MULTIPLY_CUH_
#define JAX_CXL_ENGINE_CUDA_MULTIPLY_CUH_

#include <cstdint>

#include "cc/engine/cuda/device_call.h"
#include "cc/engine/cuda/element_types.cuh"
#include "cc/engine/cuda/fold.cuh"

// Multiplies elements by the factor of a call. DeviceCall::factor contains the
// factor as many times as fit into 8 bytes.
namespace jax_cxl::cuda {

__device__ __forceinline__ uint4 RepeatedFactor(const DeviceCall& call) {
  const auto low = static_cast<uint32_t>(call.factor);
  const auto high = static_cast<uint32_t>(call.factor >> 32);
  return make_uint4(low, high, low, high);
}

template <typename Type>
__device__ __forceinline__ uint4 MultiplyAs(const DeviceCall& call,
                                            uint4 elements) {
  ElementFold<Type> product;
  product.Begin(elements);
  product.Add(ReduceOp::kProd, RepeatedFactor(call));
  return product.Result();
}

// Multiplies 16 bytes of elements. Types without a ReduceStep of their own use
// the functions that reductions use for them, so that nvcc compiles no
// additional functions. Multiply is not inlined, because unrolled loops call
// it.
__device__ __noinline__ inline uint4 Multiply(const DeviceCall& call,
                                              uint4 elements) {
  switch (call.dtype) {
    case DType::kFloat32:
      return MultiplyAs<Native<float>>(call, elements);
    case DType::kBfloat16:
      return MultiplyAs<NarrowFloat<cpu::Bfloat16>>(call, elements);
    case DType::kFloat16:
      return MultiplyAs<NarrowFloat<cpu::Float16>>(call, elements);
    default:
      break;
  }
  Operands operands;
  operands.values[0] = elements;
  operands.values[1] = RepeatedFactor(call);
  operands.count = 2;
  return WithElementType(call.dtype, [&]<typename Type>() {
    return FoldInAs<Type>(ReduceOp::kProd, /*divisor=*/0, operands,
                          /*first=*/true);
  });
}

}  // namespace jax_cxl::cuda

#endif  // JAX_CXL_ENGINE_CUDA_MULTIPLY_CUH_
