#ifndef JAX_CXL_NCCL_COMPARE_RULE_H_
#define JAX_CXL_NCCL_COMPARE_RULE_H_

#include <cmath>
#include <cstdint>
#include <optional>

#include "cc/base/dtype.h"
#include "cc/engine/kernels/float_formats.h"

// When two results of one call are alike. Devices execute these functions.
namespace jax_cxl::nccl {

enum class Likeness : uint8_t {
  kBits,     // moves, and reductions of integers
  kValues,   // min and max of floats
  kSum,      // of floats, also means and premultiplied sums
  kProduct,  // of floats
};

// Sums and products of floats depend on the order of the ranks, so each result
// has an error. The weight of an element bounds it, for any order. It is a sum
// over the ranks' inputs x:
//
//   sum       |x|, or |x times its factor|
//   product   |log2 |x||, where x is not 0
//
// If a sum has n terms, each result differs from the exact one by at most
// (n - 1) u times the weight, where u is half of the distance from 1 to the
// next number (Jeannerod and Rump, 2013). A product with r roundings is off by
// a factor of at most (1 + u)^r, unless a part of it leaves the type's range.
// So above `most_weight`, where a part can overflow or underflow, any result
// is right.
struct Rule {
  DType dtype = DType::kUint8;
  Likeness likeness = Likeness::kBits;
  double most_weight = 0;
  double slope = 0;  // allowed difference: slope * weight + slack, and for
  double slack = 0;  // products slope * result

  bool weighs() const { return likeness != Likeness::kBits; }
  JAX_CXL_INLINE DType weight_dtype() const {
    return dtype == DType::kFloat64 ? dtype : DType::kFloat32;
  }
};

// Returns the rule for a call over `ranks` ranks. `op` is empty for moves.
// `divisor` is that of a mean, or 0, and `multiplies` is true for premultiplied
// sums.
Rule RuleFor(DType dtype, std::optional<ReduceOp> op, int ranks,
             uint32_t divisor = 0, bool multiplies = false);

// Returns the element with this index, in the low bits.
JAX_CXL_INLINE uint64_t ElementBits(const void* data, uint64_t index,
                                    int bytes) {
  switch (bytes) {
    case 1:
      return static_cast<const uint8_t*>(data)[index];
    case 2:
      return static_cast<const uint16_t*>(data)[index];
    case 4:
      return static_cast<const uint32_t*>(data)[index];
    default:
      return static_cast<const uint64_t*>(data)[index];
  }
}

// Returns the value of an element, which has one of NCCL's types.
JAX_CXL_INLINE double ValueOf(DType dtype, uint64_t bits) {
  switch (dtype) {
    case DType::kInt8:
      return static_cast<int8_t>(bits);
    case DType::kInt32:
      return static_cast<int32_t>(bits);
    case DType::kInt64:
      return static_cast<double>(static_cast<int64_t>(bits));
#define JAX_CXL_NCCL_WIDEN(Format) \
  case DType::k##Format:           \
    return cpu::Format::Widen(static_cast<cpu::Format::Storage>(bits));
      JAX_CXL_SMALL_FLOATS(JAX_CXL_NCCL_WIDEN)
#undef JAX_CXL_NCCL_WIDEN
    case DType::kFloat32:
      return cpu::FromBits(static_cast<uint32_t>(bits));
    case DType::kFloat64:
      return __builtin_bit_cast(double, bits);
    default:
      return static_cast<double>(bits);
  }
}

// Returns one rank's part of an element's weight.
JAX_CXL_INLINE double PartOfWeight(const Rule& rule, double x, double factor) {
  if (rule.likeness != Likeness::kProduct) return fabs(x * factor);
  return x == 0 ? 0 : fabs(log2(fabs(x)));
}

JAX_CXL_INLINE bool Differ(const Rule& rule, uint64_t ours, uint64_t theirs,
                           double weight) {
  if (ours == theirs) return false;
  if (rule.likeness == Likeness::kBits) return true;
  const double a = ValueOf(rule.dtype, ours), b = ValueOf(rule.dtype, theirs);
  if (a == b || (a != a && b != b)) return false;  // each is NaN
  // An input is NaN. Only min and max may leave it out.
  if (weight != weight) return rule.likeness != Likeness::kValues;
  if (weight > rule.most_weight) return false;
  const double allowed = rule.likeness == Likeness::kProduct
                             ? rule.slope * fmax(fabs(a), fabs(b))
                             : rule.slope * weight + rule.slack;
  const double difference = fabs(a - b);
  return !(difference <= allowed && difference < HUGE_VAL);
}

}  // namespace jax_cxl::nccl

#endif  // JAX_CXL_NCCL_COMPARE_RULE_H_
