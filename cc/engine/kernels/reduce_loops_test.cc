// Sanitizers: address optimized

#include "cc/engine/kernels/reduce_loops.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <ios>
#include <random>
#include <vector>

#include "cc/engine/kernels/float_formats.h"
#include "cc/engine/kernels/reduce_complex.h"
#include "cc/engine/kernels/reduce_float16.h"
#include "cc/testing/reference/reduce_reference.h"

// Tests the loops for every instruction set of this machine, not only for the
// one that Reduce chooses. Also tests conversions from every code of a small
// format, and from float32 values with every case of rounding.
namespace jax_cxl::cpu {
namespace {

template <typename Loop, typename... Args>
std::vector<void (*)(Args...)> AllTargets() {
  std::vector<void (*)(Args...)> targets = {&RunBaseline<Loop, Args...>};
#if defined(__x86_64__)
  if (HasAvx2()) targets.push_back(&RunAvx2<Loop, Args...>);
  if (HasAvx512()) targets.push_back(&RunAvx512<Loop, Args...>);
#endif
  return targets;
}

template <typename T>
std::byte* AsBytes(std::vector<T>& values) {
  return reinterpret_cast<std::byte*>(values.data());
}

template <typename Loop>
std::vector<WidenFunction> AllConversions() {
  return AllTargets<Loop, const std::byte*, std::byte*, size_t>();
}

// float32 values of every sign, exponent and leading 11 bits of mantissa, with
// several values of the remaining bits. No format here keeps more than 10 bits,
// so every case of rounding occurs.
std::vector<float> AllRoundings() {
  std::vector<float> values;
  for (uint32_t top = 0; top < (1u << 20); ++top) {
    for (uint32_t tail : {0x000u, 0x001u, 0x7ffu, 0x800u, 0x801u, 0xfffu}) {
      values.push_back(FromBits(top << 12 | tail));
    }
  }
  return values;
}

template <typename Small>
void CheckConversions(DType dtype, std::vector<WidenFunction> widen = {},
                      std::vector<WidenFunction> narrow = {}) {
  using Storage = typename Small::Storage;
  const auto& type = *reference::FindNarrowType(dtype);

  std::vector<Storage> codes(size_t{1} << (8 * sizeof(Storage)));
  for (size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<Storage>(i);
  for (auto function : AllConversions<WidenLoop<Small>>()) {
    widen.push_back(function);
  }
  for (auto function : widen) {
    std::vector<float> floats(codes.size());
    function(AsBytes(codes), AsBytes(floats), codes.size());
    for (size_t i = 0; i < codes.size(); ++i) {
      const double expected = reference::Decode(type, codes[i]);
      if (std::isnan(expected)) {
        ASSERT_TRUE(std::isnan(floats[i])) << "code " << i;
      } else {
        ASSERT_EQ(floats[i], expected) << "code " << i;
        ASSERT_EQ(std::signbit(floats[i]), std::signbit(expected));
      }
    }
  }

  std::vector<float> values = AllRoundings();
  std::vector<Storage> expected;
  for (float& value : values) {
    value = OneNan(value);
    expected.push_back(static_cast<Storage>(reference::Encode(type, value)));
  }
  for (auto function : AllConversions<NarrowLoop<Small>>()) {
    narrow.push_back(function);
  }
  for (auto function : narrow) {
    std::vector<Storage> got(values.size());
    function(AsBytes(values), AsBytes(got), values.size());
    const auto [at, wanted] =
        std::mismatch(got.begin(), got.end(), expected.begin());
    ASSERT_TRUE(at == got.end())
        << int{*at} << ", not " << int{*wanted} << ", of " << std::hexfloat
        << values[at - got.begin()];
  }
}

TEST(ConversionTest, Float16) {
#if defined(__x86_64__)
  if (HasAvx2()) {
    CheckConversions<Float16>(DType::kFloat16, {&WidenFloat16},
                              {&NarrowFloat16});
    return;
  }
#endif
  CheckConversions<Float16>(DType::kFloat16);
}
TEST(ConversionTest, Bfloat16) { CheckConversions<Bfloat16>(DType::kBfloat16); }
TEST(ConversionTest, Float8E4M3Fn) {
  CheckConversions<Float8E4M3Fn>(DType::kFloat8E4M3Fn);
}
TEST(ConversionTest, Float8E5M2) {
  CheckConversions<Float8E5M2>(DType::kFloat8E5M2);
}
TEST(ConversionTest, Float8E4M3B11Fnuz) {
  CheckConversions<Float8E4M3B11Fnuz>(DType::kFloat8E4M3B11Fnuz);
}
TEST(ConversionTest, Float8E4M3Fnuz) {
  CheckConversions<Float8E4M3Fnuz>(DType::kFloat8E4M3Fnuz);
}
TEST(ConversionTest, Float8E5M2Fnuz) {
  CheckConversions<Float8E5M2Fnuz>(DType::kFloat8E5M2Fnuz);
}
TEST(ConversionTest, Float8E4M3) {
  CheckConversions<Float8E4M3>(DType::kFloat8E4M3);
}
TEST(ConversionTest, Float8E3M4) {
  CheckConversions<Float8E3M4>(DType::kFloat8E3M4);
}

// Tests numbers in [-2, 2) with full mantissas, so that every product is
// rounded.
template <typename Format, typename Op>
void CheckTargetsAgree(DType dtype, ReduceOp op) {
  constexpr size_t kBytes = 6000;
  std::mt19937_64 random(1);
  std::vector<std::vector<double>> doubles(3);
  std::vector<std::vector<float>> floats(3);
  std::vector<const std::byte*> sources;
  const bool single = dtype == DType::kFloat32 || dtype == DType::kComplex64;
  for (int s = 0; s < 3; ++s) {
    for (size_t i = 0; i < kBytes / 4; ++i) {
      doubles[s].push_back(static_cast<double>(random() >> 11) * 0x1p-51 - 2);
      floats[s].push_back(static_cast<float>(doubles[s].back()));
    }
    sources.push_back(single ? AsBytes(floats[s]) : AsBytes(doubles[s]));
  }
  const size_t count = kBytes / DTypeBytes(dtype);
  std::vector<std::byte> expected(kBytes);
  reference::Reduce(dtype, op, sources, expected.data(), count);
  for (auto function : AllTargets<Fold<Format, Op, 3>, const std::byte* const*,
                                  std::byte*, size_t>()) {
    std::vector<std::byte> got(kBytes);
    function(sources.data(), got.data(),
             kBytes / sizeof(typename Format::Storage));
    EXPECT_EQ(std::memcmp(got.data(), expected.data(), kBytes), 0);
  }
}

TEST(TargetsTest, NoFusedMultiplyAdd) {
  CheckTargetsAgree<Native<Complex<float>>, ComplexProd>(DType::kComplex64,
                                                         ReduceOp::kProd);
  CheckTargetsAgree<Native<Complex<double>>, ComplexProd>(DType::kComplex128,
                                                          ReduceOp::kProd);
}

TEST(TargetsTest, SameBits) {
  CheckTargetsAgree<Native<float>, Sum>(DType::kFloat32, ReduceOp::kSum);
  CheckTargetsAgree<Native<double>, Sum>(DType::kFloat64, ReduceOp::kSum);
  CheckTargetsAgree<Native<float>, Prod>(DType::kFloat32, ReduceOp::kProd);
  CheckTargetsAgree<Native<float>, Max>(DType::kFloat32, ReduceOp::kMax);
  CheckTargetsAgree<Native<int64_t>, Min>(DType::kInt64, ReduceOp::kMin);
  CheckTargetsAgree<Native<uint8_t>, MinE8M0>(DType::kFloat8E8M0Fnu,
                                              ReduceOp::kMin);
  CheckTargetsAgree<Bool, And>(DType::kBool, ReduceOp::kProd);
  CheckTargetsAgree<Native<uint16_t>, Or>(DType::kInt16, ReduceOp::kOr);
  CheckTargetsAgree<Bfloat16Pair, OnPair<Sum>>(DType::kBfloat16,
                                               ReduceOp::kSum);
}

}  // namespace
}  // namespace jax_cxl::cpu
