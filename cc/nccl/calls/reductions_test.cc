// Sanitizers: address

#include "cc/nccl/calls/reductions.h"

#include <gtest/gtest.h>

#include <bit>
#include <cstdint>
#include <memory>
#include <set>
#include <string>

#include "cc/nccl/calls/operation.h"
#include "cc/nccl/interface/abi.h"

namespace jax_cxl::nccl {
namespace {

constexpr int kNcclInt8 = 0, kNcclFloat32 = 7, kNcclFloat64 = 8;

int AddFloat(Reductions& reductions, float factor) {
  const auto number =
      reductions.Add(&factor, kNcclFloat32, kScalarHostImmediate);
  EXPECT_TRUE(number.ok()) << number.status().message();
  return *number;
}

void ExpectNone(const Status& status, int number) {
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  const std::string text = "has no reduction " + std::to_string(number) + ".";
  EXPECT_NE(status.message().find(text), std::string::npos) << status.message();
}

Result<Collective> MakeSum(const Reductions& reductions, int number, int type) {
  static float buffer[4];
  return MakeCollective(
      {Verb::kReduceScatter, buffer, buffer, 2, type, number, 0, nullptr}, 0, 2,
      reductions);
}

TEST(ReductionsTest, KeepsAnImmediateAndThePlaceOfTheOther) {
  Reductions reductions;
  float factor = 0.75;
  const auto immediate =
      reductions.Add(&factor, kNcclFloat32, kScalarHostImmediate);
  const auto on_device = reductions.Add(&factor, kNcclFloat32, kScalarDevice);
  ASSERT_TRUE(immediate.ok() && on_device.ok());
  factor = 3;
  const auto first = MakeSum(reductions, *immediate, kNcclFloat32);
  ASSERT_TRUE(first.ok()) << first.status().message();
  EXPECT_EQ(first->call.reduce_op, ReduceOp::kSum);
  EXPECT_EQ(first->call.name, "ncclReduceScatter (premultiplied)");
  EXPECT_EQ(first->divisor, 0);
  EXPECT_EQ(first->factor->bits, std::bit_cast<uint32_t>(0.75f));
  EXPECT_EQ(first->factor->at, nullptr);
  const auto second = MakeSum(reductions, *on_device, kNcclFloat32);
  ASSERT_TRUE(second.ok()) << second.status().message();
  EXPECT_EQ(second->factor->at, &factor);
  const auto plain = MakeSum(reductions, kSum, kNcclFloat32);
  ASSERT_TRUE(plain.ok()) << plain.status().message();
  EXPECT_FALSE(plain->factor.has_value());
}

// The address sanitizer would report a read of too many bytes.
TEST(ReductionsTest, ReadsTheBytesOfTheType) {
  Reductions reductions;
  const auto small = std::make_unique<int8_t>(-2);
  const auto large = std::make_unique<double>(-2);
  const auto first =
      reductions.Add(small.get(), kNcclInt8, kScalarHostImmediate);
  const auto second =
      reductions.Add(large.get(), kNcclFloat64, kScalarHostImmediate);
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_EQ(reductions.Find("test", *first, kNcclInt8)->bits, 0xfe);
  EXPECT_EQ(reductions.Find("test", *second, kNcclFloat64)->bits,
            std::bit_cast<uint64_t>(-2.0));
}

TEST(ReductionsTest, BelongToOneCommunicatorUntilTheyAreDestroyed) {
  Reductions mine, other;
  const int number = AddFloat(mine, 1);
  const int of_other = AddFloat(other, 1);
  EXPECT_NE(number, of_other);
  ExpectNone(MakeSum(mine, of_other, kNcclFloat32).status(), of_other);
  ExpectNone(mine.Remove(of_other), of_other);
  EXPECT_TRUE(mine.Remove(number).ok());
  ExpectNone(MakeSum(mine, number, kNcclFloat32).status(), number);
  ExpectNone(mine.Remove(number), number);
  ExpectNone(mine.Remove(kSum), kSum);
  EXPECT_NE(AddFloat(mine, 1), number);
  EXPECT_TRUE(MakeSum(other, of_other, kNcclFloat32).ok());
}

TEST(ReductionsTest, NumbersAreNotThoseOfNccl) {
  Reductions reductions;
  std::set<int> numbers;
  for (int i = 0; i < 1000; ++i) {
    const int number = AddFloat(reductions, 1);
    EXPECT_GT(number, kNumOps);
    EXPECT_LT(number, kNoOp);
    EXPECT_TRUE(numbers.insert(number).second);
    if (i % 2 == 0) {
      EXPECT_TRUE(reductions.Remove(number).ok());
    }
  }
}

TEST(ReductionsTest, RefusesWrongArguments) {
  Reductions reductions;
  const int number = AddFloat(reductions, 1);
  const Status other = MakeSum(reductions, number, kNcclFloat64).status();
  EXPECT_EQ(other.code(), Code::kInvalidArgument);
  EXPECT_NE(other.message().find("made for float32, not for float64"),
            std::string::npos)
      << other.message();
  float factor = 1;
  const auto code = [&](const void* scalar, int type, int residence) {
    return reductions.Add(scalar, type, residence).status().code();
  };
  EXPECT_EQ(code(&factor, 12, kScalarDevice), Code::kInvalidArgument);
  EXPECT_EQ(code(&factor, -1, kScalarDevice), Code::kInvalidArgument);
  EXPECT_EQ(code(&factor, kNcclFloat32, 2), Code::kInvalidArgument);
  EXPECT_EQ(code(nullptr, kNcclFloat32, kScalarDevice), Code::kInvalidArgument);
  EXPECT_EQ(code(nullptr, kNcclFloat32, kScalarHostImmediate),
            Code::kInvalidArgument);
}

}  // namespace
}  // namespace jax_cxl::nccl
