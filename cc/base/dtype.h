#ifndef JAX_CXL_BASE_DTYPE_H_
#define JAX_CXL_BASE_DTYPE_H_

#include <cstdint>
#include <string_view>

namespace jax_cxl {

// Element types, with JAX's names. Call descriptors in the pool contain these
// numbers, so append new types, and never change the number of a type.
enum class DType : uint8_t {
  kBool = 0,
  kInt8 = 1,
  kInt16 = 2,
  kInt32 = 3,
  kInt64 = 4,
  kUint8 = 5,
  kUint16 = 6,
  kUint32 = 7,
  kUint64 = 8,
  kFloat16 = 9,
  kBfloat16 = 10,
  kFloat32 = 11,
  kFloat64 = 12,
  kComplex64 = 13,
  kComplex128 = 14,
  kFloat8E4M3Fn = 15,
  kFloat8E5M2 = 16,
  kFloat8E4M3B11Fnuz = 17,
  kFloat8E4M3Fnuz = 18,
  kFloat8E5M2Fnuz = 19,
  kFloat8E4M3 = 20,
  kFloat8E3M4 = 21,
  kFloat8E8M0Fnu = 22,
};
inline constexpr int kNumDTypes = 23;

// Expands to V(name, type) for each dtype whose elements are a type of C++.
#define JAX_CXL_NATIVE_DTYPES(V) \
  V(Int8, int8_t)                \
  V(Int16, int16_t)              \
  V(Int32, int32_t)              \
  V(Int64, int64_t)              \
  V(Uint8, uint8_t)              \
  V(Uint16, uint16_t)            \
  V(Uint32, uint32_t)            \
  V(Uint64, uint64_t)            \
  V(Float32, float)              \
  V(Float64, double)

// Returns true for bool and the integers.
constexpr bool IsIntegral(DType dtype) { return dtype <= DType::kUint64; }

// Returns the size of one element in bytes, or 0 for a value that is not a
// DType.
int DTypeBytes(DType dtype);
std::string_view DTypeName(DType dtype);

// kAnd and kOr are bitwise for integers, and logical for bool.
enum class ReduceOp : uint8_t {
  kSum = 0,
  kProd = 1,
  kMin = 2,
  kMax = 3,
  kAnd = 4,
  kOr = 5,
};
inline constexpr int kNumReduceOps = 6;

std::string_view ReduceOpName(ReduceOp op);

}  // namespace jax_cxl

#endif  // JAX_CXL_BASE_DTYPE_H_
