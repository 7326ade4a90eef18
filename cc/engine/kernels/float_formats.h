#ifndef JAX_CXL_ENGINE_KERNELS_FLOAT_FORMATS_H_
#define JAX_CXL_ENGINE_KERNELS_FLOAT_FORMATS_H_

#include <cstdint>

#include "cc/engine/kernels/reduce_targets.h"

// Conversions between float32 and the narrow float types. They have no
// branches, so that loops over them vectorize. Widening is exact. Narrowing
// rounds once, to nearest even, and gives the same bits as a cast from float32
// in ml_dtypes.
namespace jax_cxl::cpu {

JAX_CXL_INLINE constexpr uint32_t Bits(float value) {
  return __builtin_bit_cast(uint32_t, value);
}
JAX_CXL_INLINE constexpr float FromBits(uint32_t bits) {
  return __builtin_bit_cast(float, bits);
}

// Returns `yes` if `condition` is true, else `no`, without a branch: compilers
// do not vectorize branches.
JAX_CXL_INLINE constexpr uint32_t Select(bool condition, uint32_t yes,
                                         uint32_t no) {
  const uint32_t mask = -static_cast<uint32_t>(condition);
  return (yes & mask) | (no & ~mask);
}

// The special values at the top of a format's range.
enum class Specials {
  kIeee,  // the last exponent holds infinity and NaN
  kFn,    // no infinity; all ones is NaN
  kFnuz,  // no infinity, no negative zero; the sign bit alone is NaN
};

// A format with one sign bit, `kExponent` exponent bits and `kMantissa`
// mantissa bits.
template <typename StorageT, int kExponent, int kMantissa, int kBias,
          Specials kSpecials>
struct SmallFloat {
  using Storage = StorageT;

  static constexpr int kShift = 23 - kMantissa;
  static constexpr uint32_t kSign = 1u << (kExponent + kMantissa);
  static constexpr uint32_t kMagnitude = kSign - 1;
  static constexpr uint32_t kLastExponent = ((1u << kExponent) - 1)
                                            << kMantissa;
  // The first code above the largest finite number. It stands for
  // infinity or NaN.
  static constexpr uint32_t kOverflow =
      kSpecials == Specials::kIeee ? kLastExponent
      : kSpecials == Specials::kFn ? kMagnitude
                                   : kSign;
  static constexpr uint32_t kNan = kSpecials == Specials::kIeee
                                       ? kLastExponent | (1u << (kMantissa - 1))
                                       : kOverflow;
  // The difference of the exponent biases, shifted to the exponent bits of a
  // float32.
  static constexpr uint32_t kRebias = uint32_t{127 - kBias} << 23;
  static constexpr uint32_t kMinNormal = kRebias + (1u << 23);
  // A power of two. As a float32, it is so large that its last mantissa bit is
  // worth the format's smallest subnormal. So if this number is added to a
  // small float32, the sum is rounded to a multiple of that subnormal.
  static constexpr float kAligner =
      FromBits(static_cast<uint32_t>(127 + 24 - kBias - kMantissa) << 23);
  static constexpr float kSmallest =
      FromBits(static_cast<uint32_t>(127 + 1 - kBias - kMantissa) << 23);

  JAX_CXL_INLINE static float Widen(Storage code) {
    const int32_t magnitude = code & kMagnitude;
    const uint32_t sign = (code & kSign) << (31 - kExponent - kMantissa);
    const uint32_t shifted = static_cast<uint32_t>(magnitude) << kShift;
    const uint32_t subnormal = Bits(static_cast<float>(magnitude) * kSmallest);
    uint32_t bits =
        Select(magnitude < (1 << kMantissa), subnormal, shifted + kRebias);
    if constexpr (kSpecials == Specials::kIeee) {
      const uint32_t quiet =
          Select(magnitude > int32_t{kLastExponent}, 0x00400000u, 0);
      bits = Select(magnitude >= int32_t{kLastExponent},
                    shifted | 0x7f800000u | quiet, bits);
    } else if constexpr (kSpecials == Specials::kFn) {
      bits = Select(magnitude == int32_t{kMagnitude}, 0x7fc00000u, bits);
    } else {
      bits = Select(code == kSign, 0x7fc00000u, bits);
    }
    return FromBits(bits | sign);
  }

  // Every NaN becomes the format's quiet NaN of the same sign.
  JAX_CXL_INLINE static Storage Narrow(float value) {
    const uint32_t bits = Bits(value);
    // Signed, because vector instructions compare signed integers more easily
    // than unsigned ones.
    const int32_t magnitude = bits & 0x7fffffffu;
    const uint32_t subnormal =
        Bits(FromBits(magnitude) + kAligner) - Bits(kAligner);
    const uint32_t odd = (magnitude >> kShift) & 1;
    const uint32_t normal =
        (magnitude - kRebias + ((1u << (kShift - 1)) - 1) + odd) >> kShift;
    uint32_t code = Select(magnitude < int32_t{kMinNormal}, subnormal, normal);
    code = Select(static_cast<int32_t>(code) < int32_t{kOverflow}, code,
                  kOverflow);
    code = Select(magnitude > 0x7f800000, kNan, code);
    uint32_t sign = (bits >> 31) << (kExponent + kMantissa);
    if constexpr (kSpecials == Specials::kFnuz) {
      sign = Select(code == 0, 0, sign);
    }
    return static_cast<Storage>(code | sign);
  }
};

using Float16 = SmallFloat<uint16_t, 5, 10, 15, Specials::kIeee>;
using Float8E5M2 = SmallFloat<uint8_t, 5, 2, 15, Specials::kIeee>;
using Float8E4M3 = SmallFloat<uint8_t, 4, 3, 7, Specials::kIeee>;
using Float8E3M4 = SmallFloat<uint8_t, 3, 4, 3, Specials::kIeee>;
using Float8E4M3Fn = SmallFloat<uint8_t, 4, 3, 7, Specials::kFn>;
using Float8E4M3B11Fnuz = SmallFloat<uint8_t, 4, 3, 11, Specials::kFnuz>;
using Float8E4M3Fnuz = SmallFloat<uint8_t, 4, 3, 8, Specials::kFnuz>;
using Float8E5M2Fnuz = SmallFloat<uint8_t, 5, 2, 16, Specials::kFnuz>;

struct Bfloat16 {
  using Storage = uint16_t;

  JAX_CXL_INLINE static float Widen(Storage code) {
    return FromBits(uint32_t{code} << 16);
  }

  // Every NaN becomes bfloat16's quiet NaN of the same sign.
  JAX_CXL_INLINE static Storage Narrow(float value) {
    const uint32_t bits = Bits(value);
    const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1)) >> 16;
    const uint32_t nan = (bits >> 16 & 0x8000u) | 0x7fc0u;
    return static_cast<Storage>((bits & 0x7fffffffu) > 0x7f800000u ? nan
                                                                   : rounded);
  }
};

// Expands to V(format) for each format above. The dtype has the same name.
#define JAX_CXL_SMALL_FLOATS(V) \
  V(Float16)                    \
  V(Bfloat16)                   \
  V(Float8E5M2)                 \
  V(Float8E4M3)                 \
  V(Float8E3M4)                 \
  V(Float8E4M3Fn)               \
  V(Float8E4M3B11Fnuz)          \
  V(Float8E4M3Fnuz)             \
  V(Float8E5M2Fnuz)

}  // namespace jax_cxl::cpu

#endif  // JAX_CXL_ENGINE_KERNELS_FLOAT_FORMATS_H_
