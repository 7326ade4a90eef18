#include "cc/nccl/compare/rule.h"

namespace jax_cxl::nccl {

Rule RuleFor(DType dtype, std::optional<ReduceOp> op, int ranks,
             uint32_t divisor, bool multiplies) {
  Rule rule = {.dtype = dtype};
  if (!op || IsIntegral(dtype)) return rule;
  if (*op == ReduceOp::kMin || *op == ReduceOp::kMax) {
    rule.likeness = Likeness::kValues;
    rule.most_weight = HUGE_VAL;
    return rule;
  }
  // Up to twice the least normal number, numbers are multiples of the least
  // one, and their bits count these.
  const double least = ValueOf(dtype, 1);
  uint64_t normal = 1;
  while (ValueOf(dtype, 4 * normal) == 4 * normal * least) normal *= 2;
  const double least_normal = normal * least;
  const double step = 1.0 / normal;  // 2 u
  if (*op == ReduceOp::kProd) {
    rule.likeness = Likeness::kProduct;
    // Roundings can add at most `ranks * step` to the logarithm.
    rule.most_weight = -log2(least_normal) - 1 - ranks * step;
    rule.slope = ranks * step;
    return rule;
  }
  rule.likeness = Likeness::kSum;
  rule.most_weight = 1 / least_normal;  // at most half of the largest number
  // Two results have 2 (n - 1) u. In means and premultiplied sums, factors,
  // products and quotients are rounded too. The rest is for types that NCCL
  // rounds twice, products of these roundings, and the rounding of the weight.
  const int roundings = divisor > 0 || multiplies ? ranks + 1 : ranks - 1;
  rule.slope = roundings * step * (1 + step) * (1 + step) *
               (1 + std::ldexp(ranks, -23)) / (divisor > 0 ? divisor : 1);
  // NVSwitches may take float32 numbers below the least normal one for 0.
  rule.slack = (ranks + 1) * (dtype == DType::kFloat32 ? least_normal : least);
  return rule;
}

}  // namespace jax_cxl::nccl
