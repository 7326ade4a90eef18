#ifndef JAX_CXL_NCCL_CALLS_TYPES_H_
#define JAX_CXL_NCCL_CALLS_TYPES_H_

#include <array>
#include <string_view>

#include "cc/base/dtype.h"
#include "cc/base/status.h"
#include "cc/nccl/interface/abi.h"

namespace jax_cxl::nccl {

// Indexed by ncclDataType_t.
inline constexpr std::array<DType, kNumNcclTypes> kTypes = {
    DType::kInt8,     DType::kUint8,        DType::kInt32,
    DType::kUint32,   DType::kInt64,        DType::kUint64,
    DType::kFloat16,  DType::kFloat32,      DType::kFloat64,
    DType::kBfloat16, DType::kFloat8E4M3Fn, DType::kFloat8E5M2};

// Fails with kInvalidArgument if kTypes has no such type.
inline Status CheckType(std::string_view function, int type) {
  if (type >= 0 && type < kNumNcclTypes) return OkStatus();
  return Error(Code::kInvalidArgument, function, ": there is no data type ",
               type, "; ncclDataType_t has 0 to ", kNumNcclTypes - 1);
}

}  // namespace jax_cxl::nccl

#endif  // JAX_CXL_NCCL_CALLS_TYPES_H_
