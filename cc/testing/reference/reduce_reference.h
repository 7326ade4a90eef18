#ifndef JAX_CXL_TESTING_REFERENCE_REDUCE_REFERENCE_H_
#define JAX_CXL_TESTING_REFERENCE_REDUCE_REFERENCE_H_

#include <algorithm>
#include <cmath>
#include <complex>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "cc/base/dtype.h"

// For tests: reductions according to the contract in kernels.h, one element at
// a time, with arithmetic on values instead of bits. Shares no code with the
// kernels.
namespace jax_cxl::cpu::reference {

// Returns true if cpu::Reduce supports `op` for elements of `dtype`.
inline bool CanReduce(DType dtype, ReduceOp op) {
  const bool ordering = op == ReduceOp::kMin || op == ReduceOp::kMax;
  const bool bitwise = op == ReduceOp::kAnd || op == ReduceOp::kOr;
  switch (dtype) {
    case DType::kComplex64:
    case DType::kComplex128:
      return !ordering && !bitwise;
    case DType::kFloat8E8M0Fnu:
      return ordering;
    default:
      return !bitwise || IsIntegral(dtype);
  }
}

// The layout and the largest finite value of a narrow float type.
struct NarrowType {
  int bytes;
  int exponent_bits;
  int mantissa_bits;
  int bias;
  bool has_infinity;
  bool nan_is_minus_zero;
  double max;
};

inline const NarrowType* FindNarrowType(DType dtype) {
  static constexpr NarrowType kTypes[] = {
      {2, 5, 10, 15, true, false, 65504},
      {2, 8, 7, 127, true, false, 0x1.fep127},
      {1, 4, 3, 7, false, false, 448},
      {1, 5, 2, 15, true, false, 57344},
      {1, 4, 3, 11, false, true, 30},
      {1, 4, 3, 8, false, true, 240},
      {1, 5, 2, 16, false, true, 57344},
      {1, 4, 3, 7, true, false, 240},
      {1, 3, 4, 3, true, false, 15.5}};
  switch (dtype) {
    case DType::kFloat16:
      return &kTypes[0];
    case DType::kBfloat16:
      return &kTypes[1];
    case DType::kFloat8E4M3Fn:
      return &kTypes[2];
    case DType::kFloat8E5M2:
      return &kTypes[3];
    case DType::kFloat8E4M3B11Fnuz:
      return &kTypes[4];
    case DType::kFloat8E4M3Fnuz:
      return &kTypes[5];
    case DType::kFloat8E5M2Fnuz:
      return &kTypes[6];
    case DType::kFloat8E4M3:
      return &kTypes[7];
    case DType::kFloat8E3M4:
      return &kTypes[8];
    default:
      return nullptr;
  }
}

inline double Decode(const NarrowType& type, uint32_t code) {
  const int bits = 1 + type.exponent_bits + type.mantissa_bits;
  const bool negative = (code >> (bits - 1)) != 0;
  const int exponent =
      (code >> type.mantissa_bits) & ((1 << type.exponent_bits) - 1);
  const int mantissa = code & ((1 << type.mantissa_bits) - 1);
  double value = exponent == 0
                     ? std::ldexp(mantissa, 1 - type.bias - type.mantissa_bits)
                     : std::ldexp(mantissa + (1 << type.mantissa_bits),
                                  exponent - type.bias - type.mantissa_bits);
  if (type.nan_is_minus_zero) {
    if (negative && value == 0) return std::nan("");
  } else if (value > type.max) {
    value = type.has_infinity && mantissa == 0
                ? std::numeric_limits<double>::infinity()
                : std::nan("");
  }
  return negative ? -value : value;
}

// Returns the code of `value` in a narrow type. Rounds once, to nearest even.
// Values beyond the largest number become infinity, or NaN in types without
// infinity.
inline uint32_t Encode(const NarrowType& type, float value) {
  const int m = type.mantissa_bits;
  const uint32_t sign_bit = 1u << (type.exponent_bits + m);
  const uint32_t top_exponent = ((1u << type.exponent_bits) - 1) << m;
  const uint32_t sign = std::signbit(value) ? sign_bit : 0;
  const uint32_t infinity = type.has_infinity        ? sign | top_exponent
                            : type.nan_is_minus_zero ? sign_bit
                                                     : sign | (sign_bit - 1);
  if (std::isnan(value)) {
    return type.has_infinity ? infinity | (1u << (m - 1)) : infinity;
  }
  if (std::isinf(value)) return infinity;
  const double magnitude = std::fabs(static_cast<double>(value));
  const int exponent = magnitude == 0
                           ? 1 - type.bias
                           : std::max(std::ilogb(magnitude), 1 - type.bias);
  const double steps = std::nearbyint(std::ldexp(magnitude, m - exponent));
  if (std::ldexp(steps, exponent - m) > type.max) return infinity;
  const auto code =
      static_cast<uint32_t>(steps + std::ldexp(exponent + type.bias - 1, m));
  return code == 0 && type.nan_is_minus_zero ? 0 : sign | code;
}

// Combines two values. `volatile` keeps the compiler from fusing operations,
// and from computing in a wider type.
template <typename T>
T FoldFloat(ReduceOp op, T a, T b) {
  volatile T result;
  switch (op) {
    case ReduceOp::kSum:
      result = a + b;
      break;
    case ReduceOp::kProd:
      result = a * b;
      break;
    case ReduceOp::kMin:
      result = std::isnan(a) ? a : std::isnan(b) ? b : b < a ? b : a;
      break;
    default:
      result = std::isnan(a) ? a : std::isnan(b) ? b : b > a ? b : a;
      break;
  }
  return std::isnan(result) ? std::numeric_limits<T>::quiet_NaN() : T{result};
}

template <typename T>
T FoldInteger(ReduceOp op, T a, T b) {
  const auto x = static_cast<uint64_t>(a);
  const auto y = static_cast<uint64_t>(b);
  switch (op) {
    case ReduceOp::kSum:
      return static_cast<T>(x + y);
    case ReduceOp::kProd:
      return static_cast<T>(x * y);
    case ReduceOp::kMin:
      return b < a ? b : a;
    case ReduceOp::kAnd:
      return static_cast<T>(x & y);
    case ReduceOp::kOr:
      return static_cast<T>(x | y);
    case ReduceOp::kMax:
      break;
  }
  return b > a ? b : a;
}

template <typename T>
std::complex<T> FoldComplex(ReduceOp op, std::complex<T> a, std::complex<T> b) {
  using Op = ReduceOp;
  if (op == Op::kSum) {
    return {FoldFloat(op, a.real(), b.real()),
            FoldFloat(op, a.imag(), b.imag())};
  }
  return {FoldFloat(Op::kSum, FoldFloat(op, a.real(), b.real()),
                    -FoldFloat(op, a.imag(), b.imag())),
          FoldFloat(Op::kSum, FoldFloat(op, a.real(), b.imag()),
                    FoldFloat(op, a.imag(), b.real()))};
}

inline uint8_t FoldBool(ReduceOp op, uint8_t a, uint8_t b) {
  const bool either =
      op == ReduceOp::kSum || op == ReduceOp::kMax || op == ReduceOp::kOr;
  return either ? (a || b) : (a && b);
}

inline uint8_t FoldE8M0(ReduceOp op, uint8_t a, uint8_t b) {
  if (a == 255 || b == 255) return 255;
  return FoldInteger(op, a, b);
}

template <typename T, typename FoldT>
void Run(ReduceOp op, const std::vector<const std::byte*>& sources,
         std::byte* destination, size_t count, FoldT fold) {
  for (size_t i = 0; i < count; ++i) {
    T result;
    std::memcpy(&result, sources[0] + i * sizeof(T), sizeof(T));
    for (size_t s = 1; s < sources.size(); ++s) {
      T operand;
      std::memcpy(&operand, sources[s] + i * sizeof(T), sizeof(T));
      result = fold(op, result, operand);
    }
    std::memcpy(destination + i * sizeof(T), &result, sizeof(T));
  }
}

inline void RunNarrow(const NarrowType& type, ReduceOp op,
                      const std::vector<const std::byte*>& sources,
                      std::byte* destination, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    float result = 0;
    for (size_t s = 0; s < sources.size(); ++s) {
      uint16_t code = 0;
      std::memcpy(&code, sources[s] + i * type.bytes, type.bytes);
      const auto value = static_cast<float>(Decode(type, code));
      result = s == 0 ? value : FoldFloat(op, result, value);
    }
    const auto code = static_cast<uint16_t>(Encode(type, result));
    std::memcpy(destination + i * type.bytes, &code, type.bytes);
  }
}

inline void Reduce(DType dtype, ReduceOp op,
                   const std::vector<const std::byte*>& sources,
                   std::byte* destination, size_t count) {
  if (sources.size() == 1) {
    std::memcpy(destination, sources[0], count * DTypeBytes(dtype));
    return;
  }
  if (const NarrowType* type = FindNarrowType(dtype)) {
    return RunNarrow(*type, op, sources, destination, count);
  }
#define JAX_CXL_CASE(name, type, fold) \
  case DType::name:                    \
    return Run<type>(op, sources, destination, count, fold);
  switch (dtype) {
    JAX_CXL_CASE(kBool, uint8_t, FoldBool)
    JAX_CXL_CASE(kInt8, int8_t, FoldInteger<int8_t>)
    JAX_CXL_CASE(kInt16, int16_t, FoldInteger<int16_t>)
    JAX_CXL_CASE(kInt32, int32_t, FoldInteger<int32_t>)
    JAX_CXL_CASE(kInt64, int64_t, FoldInteger<int64_t>)
    JAX_CXL_CASE(kUint8, uint8_t, FoldInteger<uint8_t>)
    JAX_CXL_CASE(kUint16, uint16_t, FoldInteger<uint16_t>)
    JAX_CXL_CASE(kUint32, uint32_t, FoldInteger<uint32_t>)
    JAX_CXL_CASE(kUint64, uint64_t, FoldInteger<uint64_t>)
    JAX_CXL_CASE(kFloat32, float, FoldFloat<float>)
    JAX_CXL_CASE(kFloat64, double, FoldFloat<double>)
    JAX_CXL_CASE(kComplex64, std::complex<float>, FoldComplex<float>)
    JAX_CXL_CASE(kComplex128, std::complex<double>, FoldComplex<double>)
    JAX_CXL_CASE(kFloat8E8M0Fnu, uint8_t, FoldE8M0)
    default:
      return;
  }
#undef JAX_CXL_CASE
}

}  // namespace jax_cxl::cpu::reference

#endif  // JAX_CXL_TESTING_REFERENCE_REDUCE_REFERENCE_H_
