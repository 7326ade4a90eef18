// Sanitizers: address

#include "cc/nccl/compare/rule.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

namespace jax_cxl::nccl {
namespace {

constexpr DType kFloats[] = {DType::kFloat8E4M3Fn, DType::kFloat8E5M2,
                             DType::kFloat16,      DType::kBfloat16,
                             DType::kFloat32,      DType::kFloat64};
constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// Rounds to the type.
uint64_t BitsOf(DType dtype, double value) {
  const auto narrow = static_cast<float>(value);
  switch (dtype) {
    case DType::kFloat8E4M3Fn:
      return cpu::Float8E4M3Fn::Narrow(narrow);
    case DType::kFloat8E5M2:
      return cpu::Float8E5M2::Narrow(narrow);
    case DType::kFloat16:
      return cpu::Float16::Narrow(narrow);
    case DType::kBfloat16:
      return cpu::Bfloat16::Narrow(narrow);
    case DType::kFloat32:
      return cpu::Bits(narrow);
    default:
      return __builtin_bit_cast(uint64_t, value);
  }
}
double Round(DType dtype, double value) {
  return ValueOf(dtype, BitsOf(dtype, value));
}

// How a library folds values in this order. NCCL rounds each partial result to
// the type, and this one only the last.
uint64_t Fold(const Rule& rule, const std::vector<double>& values,
              bool rounds_each, double quotient = 1) {
  const DType wide = rounds_each || rule.dtype == DType::kFloat64
                         ? rule.dtype
                         : DType::kFloat32;
  double fold = values[0];
  for (size_t i = 1; i < values.size(); ++i)
    fold = Round(wide, rule.likeness == Likeness::kProduct ? fold * values[i]
                                                           : fold + values[i]);
  return BitsOf(rule.dtype, fold / quotient);
}

double WeightOf(const Rule& rule, const std::vector<double>& values) {
  double weight = 0;
  for (double value : values)
    weight = Round(rule.weight_dtype(),
                   weight + PartOfWeight(rule, value, /*factor=*/1));
  return weight;
}

TEST(RuleTest, TwoOrdersOfARankAreAlike) {
  std::mt19937 random(1);
  for (const DType dtype : kFloats) {
    for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kProd}) {
      for (const int ranks : {2, 3, 8, 64}) {
        const Rule rule = RuleFor(dtype, op, ranks);
        std::uniform_real_distribution<double> exponents(-12, 12);
        for (int turn = 0; turn < 300; ++turn) {
          std::vector<double> values;
          for (int rank = 0; rank < ranks; ++rank)
            values.push_back(Round(
                dtype, (random() % 2 ? 1 : -1) * std::exp2(exponents(random))));
          const double weight = WeightOf(rule, values);
          const uint64_t ours = Fold(rule, values, false);
          std::ranges::shuffle(values, random);
          const uint64_t theirs = Fold(rule, values, true);
          EXPECT_FALSE(Differ(rule, ours, theirs, weight))
              << DTypeName(dtype) << " " << ReduceOpName(op) << " " << ranks
              << ": " << ValueOf(dtype, ours) << " " << ValueOf(dtype, theirs)
              << " weight " << weight;
        }
      }
    }
  }
}

// NCCL multiplies by the rounded inverse of the number of ranks, and this
// library divides the sum.
TEST(RuleTest, MeansAreAlike) {
  std::mt19937 random(2);
  std::uniform_real_distribution<double> uniform(-4, 4);
  for (const DType dtype : kFloats) {
    for (const int ranks : {2, 3, 7, 64}) {
      const Rule rule = RuleFor(dtype, ReduceOp::kSum, ranks, ranks);
      const double inverse = Round(dtype, 1.0 / ranks);
      for (int turn = 0; turn < 300; ++turn) {
        std::vector<double> values, products;
        for (int rank = 0; rank < ranks; ++rank) {
          values.push_back(Round(dtype, uniform(random)));
          products.push_back(Round(dtype, values.back() * inverse));
        }
        EXPECT_FALSE(Differ(rule, Fold(rule, values, false, ranks),
                            Fold(rule, products, true), WeightOf(rule, values)))
            << DTypeName(dtype) << " " << ranks;
      }
    }
  }
}

// What an error would do: a rank's value twice, none of it, or that of another
// element.
TEST(RuleTest, FindsWrongValues) {
  for (const DType dtype : kFloats) {
    for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kProd}) {
      const Rule rule = RuleFor(dtype, op, 2);
      const std::vector<double> right = {1.5, -2};
      const double weight = WeightOf(rule, right);
      for (const std::vector<double>& wrong :
           {std::vector<double>{1.5, 4}, {1.5, 1.5}, {-2, -2}, {0, 8}})
        EXPECT_TRUE(Differ(rule, Fold(rule, wrong, false),
                           Fold(rule, right, true), weight))
            << DTypeName(dtype) << " " << ReduceOpName(op) << " " << wrong[1];
      for (double wrong : {kNan, kInfinity})
        EXPECT_TRUE(Differ(rule, BitsOf(dtype, wrong), Fold(rule, right, true),
                           weight));
    }
  }
}

TEST(RuleTest, FindsAWrongBitOfAFloat32) {
  const Rule rule = RuleFor(DType::kFloat32, ReduceOp::kSum, 2);
  const uint64_t right = cpu::Bits(3);
  for (int bit = 0; bit < 32; ++bit)
    EXPECT_EQ(Differ(rule, right ^ (uint64_t{1} << bit), right, 3), bit > 0)
        << bit;
}

TEST(RuleTest, ReadsTheFormat) {
  const auto slope = [](DType dtype) {
    return RuleFor(dtype, ReduceOp::kProd, 1).slope;
  };
  EXPECT_EQ(slope(DType::kFloat8E4M3Fn), 0x1p-3);
  EXPECT_EQ(slope(DType::kFloat8E5M2), 0x1p-2);
  EXPECT_EQ(slope(DType::kFloat16), 0x1p-10);
  EXPECT_EQ(slope(DType::kBfloat16), 0x1p-7);
  EXPECT_EQ(slope(DType::kFloat32), 0x1p-23);
  EXPECT_EQ(slope(DType::kFloat64), 0x1p-52);
  EXPECT_EQ(RuleFor(DType::kFloat16, ReduceOp::kSum, 2).most_weight, 0x1p14);
  EXPECT_EQ(RuleFor(DType::kFloat64, ReduceOp::kSum, 2).most_weight, 0x1p1022);
}

TEST(RuleTest, MovesAndIntegersHaveTheSameBits) {
  for (const Rule& rule : {RuleFor(DType::kFloat32, std::nullopt, 2),
                           RuleFor(DType::kInt32, ReduceOp::kSum, 2, 2)}) {
    EXPECT_FALSE(rule.weighs());
    EXPECT_TRUE(Differ(rule, 0x80000000, 0, 0));  // also of zeros
    EXPECT_FALSE(Differ(rule, 0x7fc00001, 0x7fc00001, 0));
  }
}

TEST(RuleTest, MinAndMaxHaveTheSameValues) {
  const Rule rule = RuleFor(DType::kFloat32, ReduceOp::kMin, 2);
  const auto differ = [&](double a, double b, double weight) {
    return Differ(rule, BitsOf(DType::kFloat32, a), BitsOf(DType::kFloat32, b),
                  weight);
  };
  EXPECT_FALSE(differ(0.0, -0.0, 0));
  EXPECT_TRUE(differ(1, std::nextafter(1.0f, 2.0f), 3));
  EXPECT_TRUE(differ(1, kInfinity, kInfinity));
  EXPECT_TRUE(differ(1, kNan, 3));
  EXPECT_FALSE(differ(1, kNan, kNan));  // NCCL leaves out an input that is NaN
}

TEST(RuleTest, OverflowDependsOnTheOrder) {
  const std::vector<double> values = {3e38, 3e38, -3e38};
  const Rule sum = RuleFor(DType::kFloat32, ReduceOp::kSum, 3);
  EXPECT_FALSE(Differ(sum, BitsOf(DType::kFloat32, kInfinity),
                      BitsOf(DType::kFloat32, 3e38), WeightOf(sum, values)));
  const Rule product = RuleFor(DType::kFloat32, ReduceOp::kProd, 3);
  EXPECT_FALSE(Differ(product, BitsOf(DType::kFloat32, 0),
                      BitsOf(DType::kFloat32, 1e-30),
                      WeightOf(product, {1e-30, 1e-30, 1e30})));
  // But NaN stays NaN.
  EXPECT_TRUE(Differ(sum, BitsOf(DType::kFloat32, kNan),
                     BitsOf(DType::kFloat32, 1), kNan));
}

TEST(RuleTest, ValuesOfIntegers) {
  EXPECT_EQ(ValueOf(DType::kInt8, 0xff), -1);
  EXPECT_EQ(ValueOf(DType::kUint8, 0xff), 255);
  EXPECT_EQ(ValueOf(DType::kInt32, 0xffffffff), -1);
  EXPECT_EQ(ValueOf(DType::kInt64, ~uint64_t{0}), -1);
  const uint16_t halves[] = {1, 2};
  EXPECT_EQ(ElementBits(halves, 1, 2), 2);
}

}  // namespace
}  // namespace jax_cxl::nccl
