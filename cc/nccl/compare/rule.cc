#include "cc/nccl/compare/rule.h"

#include <cstdlib>
#include <limits>

namespace jax_cxl::nccl {
namespace {

// The binary format of a float.
struct Format {
  int mantissa;        // bits without the leading one
  int least_exponent;  // of normal numbers
};

Format FormatOf(DType dtype) {
  switch (dtype) {
    case DType::kFloat8E4M3Fn:
      return {3, -6};
    case DType::kFloat8E5M2:
      return {2, -14};
    case DType::kFloat16:
      return {10, -14};
    case DType::kBfloat16:
      return {7, -126};
    case DType::kFloat32:
      return {23, -126};
    case DType::kFloat64:
      return {52, -1022};
    default:
      std::abort();
  }
}

}  // namespace

Rule RuleFor(DType dtype, std::optional<ReduceOp> op, int ranks,
             uint32_t divisor, bool multiplies) {
  Rule rule = {.dtype = dtype};
  if (!op || IsIntegral(dtype)) return rule;
  if (*op == ReduceOp::kMin || *op == ReduceOp::kMax) {
    rule.likeness = Likeness::kValues;
    rule.most_weight = std::numeric_limits<double>::infinity();
    return rule;
  }
  const Format format = FormatOf(dtype);
  const double step = std::ldexp(1, -format.mantissa);  // 2 u
  if (*op == ReduceOp::kProd) {
    rule.likeness = Likeness::kProduct;
    // Roundings can add at most `ranks * step` to the logarithm.
    rule.most_weight = -format.least_exponent - 1 - ranks * step;
    rule.slope = ranks * step;
    return rule;
  }
  rule.likeness = Likeness::kSum;
  rule.most_weight = std::ldexp(1, -format.least_exponent);
  // Two results have 2 (n - 1) u. In means and premultiplied sums, factors,
  // products and quotients are rounded too. The rest is for types that NCCL
  // rounds twice, products of these roundings, and the rounding of the weight.
  const int roundings = divisor > 0 || multiplies ? ranks + 1 : ranks - 1;
  rule.slope = roundings * step * (1 + step) * (1 + step) *
               (1 + std::ldexp(ranks, -23)) / (divisor > 0 ? divisor : 1);
  rule.slack =
      (ranks + 1) * std::ldexp(1, format.least_exponent - format.mantissa);
  return rule;
}

}  // namespace jax_cxl::nccl
