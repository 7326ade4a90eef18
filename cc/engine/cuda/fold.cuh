#ifndef JAX_CXL_ENGINE_CUDA_FOLD_CUH_
#define JAX_CXL_ENGINE_CUDA_FOLD_CUH_

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "cc/base/dtype.h"
#include "cc/engine/cuda/device_call.h"
#include "cc/engine/cuda/element_types.cuh"

// Folds of operands of any dtype. nvcc compiles one function for each dtype, in
// each kernel, so the functions are short.
namespace jax_cxl::cuda {

// The number of sources whose operands are loaded at the same time.
inline constexpr int kSources = 4;

// 16 bytes of each of the next `count` sources, and the fold of all sources
// before them.
struct Operands {
  uint4 values[kSources];
  int count;
  uint4 fold[4];  // ElementFolds
};

// Adds the operands to the fold, and returns the result so far. `first` is true
// if there is no fold yet. The function is not inlined, because there is one
// instance for each type. It must use few registers: a function that uses many
// saves the caller's registers in memory, in all threads at once. So elements
// of one byte are folded four at a time.
template <typename Type>
__device__ __noinline__ uint4 FoldInAs(ReduceOp op, uint32_t divisor,
                                       Operands& operands, bool first) {
  using Raw =
      std::conditional_t<sizeof(typename Type::Storage) == 1, uint32_t, uint4>;
  using Fold = ElementFold<Type, Raw>;
  constexpr int kParts = sizeof(uint4) / sizeof(Raw);
  static_assert(kParts * sizeof(Fold) <= sizeof(operands.fold));
  static_assert(std::is_trivially_copyable_v<Fold>);
  auto* folds = reinterpret_cast<Fold*>(operands.fold);
  union {
    uint4 all;
    Raw parts[kParts];
  } result;
#pragma unroll 1
  for (int part = 0; part < kParts; ++part) {
    const auto operand = [&](int k) {
      return reinterpret_cast<const Raw*>(&operands.values[k])[part];
    };
    Fold fold;
    if (first)
      fold.Begin(operand(0));
    else
      std::memcpy(&fold, &folds[part], sizeof(fold));
#pragma unroll 1
    for (int k = first ? 1 : 0; k < operands.count; ++k)
      fold.Add(op, operand(k));
    std::memcpy(&folds[part], &fold, sizeof(fold));
    result.parts[part] = fold.Result(divisor);
  }
  return result.all;
}

__device__ inline uint4 FoldIn(const DeviceCall& call, Operands& operands,
                               bool first) {
  return WithElementType(call.dtype, [&]<typename Type>() {
    return FoldInAs<Type>(call.reduce_op, call.divisor, operands, first);
  });
}

}  // namespace jax_cxl::cuda

#endif  // JAX_CXL_ENGINE_CUDA_FOLD_CUH_
