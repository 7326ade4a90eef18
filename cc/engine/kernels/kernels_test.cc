// Sanitizers: address optimized

#include "cc/engine/kernels/kernels.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "cc/testing/reference/reduce_reference.h"

namespace jax_cxl::cpu {
namespace {

constexpr size_t kMaxSources = 9;
constexpr std::byte kSentinel{0xa5};

using Bytes = std::vector<std::byte>;

// Half of the elements have random bits, so that every special value of the
// narrow types occurs. Half are small numbers, so that folds stay finite.
Bytes RandomElements(DType dtype, size_t count, std::mt19937_64& random) {
  const size_t size = DTypeBytes(dtype);
  Bytes bytes(count * size);
  for (auto& byte : bytes) byte = static_cast<std::byte>(random());
  const bool is_double =
      dtype == DType::kFloat64 || dtype == DType::kComplex128;
  const bool is_float = dtype == DType::kFloat32 || dtype == DType::kComplex64;
  if (dtype == DType::kBool) {
    for (auto& byte : bytes) {
      if (random() % 8 != 0) byte &= std::byte{1};
    }
  }
  const size_t part = is_double ? 8 : is_float ? 4 : size;
  for (size_t at = 0; at + part <= bytes.size(); at += part) {
    if (is_double || is_float) {
      const double specials[] = {0.0,
                                 -0.0,
                                 std::numeric_limits<double>::infinity(),
                                 -std::numeric_limits<double>::infinity(),
                                 std::numeric_limits<double>::quiet_NaN(),
                                 1e-310,
                                 1e-40,
                                 -1e-40,
                                 3e38,
                                 -3e38};
      const uint64_t choice = random() % 16;
      if (choice == 0) continue;
      const double number =
          choice == 1 ? specials[random() % std::size(specials)]
                      : (static_cast<double>(random() >> 11) * 0x1p-52 - 1) * 3;
      const auto single = static_cast<float>(number);
      std::memcpy(&bytes[at],
                  is_double ? static_cast<const void*>(&number) : &single,
                  part);
    } else if (const auto* type = reference::FindNarrowType(dtype)) {
      if (random() % 2 == 0) continue;
      const float number = static_cast<float>(random() % 65) / 16 - 2;
      const auto code = static_cast<uint16_t>(reference::Encode(*type, number));
      std::memcpy(&bytes[at], &code, part);
    }
  }
  return bytes;
}

std::vector<const std::byte*> Pointers(const std::vector<Bytes>& buffers,
                                       size_t sources, size_t offset = 0) {
  std::vector<const std::byte*> pointers;
  for (size_t s = 0; s < sources; ++s) {
    pointers.push_back(buffers[s].data() + offset);
  }
  return pointers;
}

// Describes the first difference of two byte strings, or returns an empty text.
std::string Difference(const std::byte* got, const std::byte* want,
                       size_t bytes, size_t element) {
  for (size_t i = 0; i < bytes; ++i) {
    if (got[i] == want[i]) continue;
    std::string text = "element " + std::to_string(i / element) + ":";
    const size_t start = i / element * element;
    for (const std::byte* from : {got, want}) {
      text += from == got ? " got" : " want";
      for (size_t b = 0; b < element; ++b) {
        text += " " + std::to_string(static_cast<int>(from[start + b]));
      }
    }
    return text;
  }
  return "";
}

using Reduction = std::pair<DType, ReduceOp>;

class ReduceTest : public testing::TestWithParam<Reduction> {
 protected:
  std::vector<Bytes> Inputs(size_t count) {
    std::mt19937_64 random(static_cast<int>(dtype_) * kNumReduceOps +
                           static_cast<int>(op_) + 1);
    std::vector<Bytes> inputs;
    for (size_t s = 0; s < kMaxSources; ++s) {
      inputs.push_back(RandomElements(dtype_, count, random));
    }
    return inputs;
  }

  Bytes Expected(const std::vector<Bytes>& inputs, size_t sources,
                 size_t count) {
    Bytes expected(count * size_);
    reference::Reduce(dtype_, op_, Pointers(inputs, sources), expected.data(),
                      count);
    return expected;
  }

  const DType dtype_ = GetParam().first;
  const ReduceOp op_ = GetParam().second;
  const size_t size_ = DTypeBytes(dtype_);
};

// Tests every small count with unaligned pointers. Each pointer is shifted by a
// different number of bytes.
TEST_P(ReduceTest, SmallCountsAtAnyAlignment) {
  constexpr size_t kMaxCount = 130;
  constexpr size_t kGuard = 64;
  const auto inputs = Inputs(kMaxCount);
  Bytes output(kMaxCount * size_ + 2 * kGuard);
  std::vector<Bytes> shifted(kMaxSources, Bytes(kMaxCount * size_ + 64));
  for (size_t sources = 1; sources <= kMaxSources; ++sources) {
    const Bytes expected = Expected(inputs, sources, kMaxCount);
    for (size_t shift : {0, 1, 3, 8, 13}) {
      std::vector<const std::byte*> pointers;
      for (size_t s = 0; s < sources; ++s) {
        std::byte* start = shifted[s].data() + shift * (s + 1) % 61;
        std::copy(inputs[s].begin(), inputs[s].end(), start);
        pointers.push_back(start);
      }
      std::byte* destination = output.data() + kGuard - shift;
      for (size_t count = 0; count <= kMaxCount; ++count) {
        std::fill(output.begin(), output.end(), kSentinel);
        Reduce(dtype_, op_, pointers, destination, count);
        ASSERT_EQ(
            Difference(destination, expected.data(), count * size_, size_), "")
            << sources << " sources, count " << count << ", shift " << shift;
        ASSERT_TRUE(std::all_of(output.data(), destination,
                                [](auto b) { return b == kSentinel; }));
        ASSERT_TRUE(std::all_of(destination + count * size_,
                                output.data() + output.size(),
                                [](auto b) { return b == kSentinel; }));
      }
    }
  }
}

TEST_P(ReduceTest, LargeCounts) {
  const auto inputs = Inputs(20011);
  for (size_t count : {1023, 1024, 1025, 4097, 20011}) {
    for (size_t sources : {2, 3, 4, 5, 7, 9}) {
      const Bytes expected = Expected(inputs, sources, count);
      Bytes output(count * size_);
      Reduce(dtype_, op_, Pointers(inputs, sources), output.data(), count);
      ASSERT_EQ(
          Difference(output.data(), expected.data(), output.size(), size_), "")
          << sources << " sources, count " << count;
    }
  }
}

TEST_P(ReduceTest, DestinationMayBeAnySource) {
  constexpr size_t kCount = 5003;
  const auto inputs = Inputs(kCount);
  for (size_t sources = 1; sources <= kMaxSources; ++sources) {
    const Bytes expected = Expected(inputs, sources, kCount);
    for (size_t target = 0; target < sources; ++target) {
      auto copies = inputs;
      Reduce(dtype_, op_, Pointers(copies, sources), copies[target].data(),
             kCount);
      ASSERT_EQ(Difference(copies[target].data(), expected.data(),
                           expected.size(), size_),
                "")
          << sources << " sources, into source " << target;
    }
  }
}

TEST_P(ReduceTest, ChunksGiveTheSameBits) {
  constexpr size_t kCount = 3001;
  const auto inputs = Inputs(kCount);
  for (size_t sources : {2, 4, 5, 9}) {
    Bytes whole(kCount * size_);
    Reduce(dtype_, op_, Pointers(inputs, sources), whole.data(), kCount);
    for (size_t chunk : {1, 63, 100, 1000, 2999}) {
      Bytes pieces(kCount * size_);
      for (size_t start = 0; start < kCount; start += chunk) {
        Reduce(dtype_, op_, Pointers(inputs, sources, start * size_),
               pieces.data() + start * size_, std::min(chunk, kCount - start));
      }
      ASSERT_EQ(whole, pieces) << sources << " sources, chunks of " << chunk;
    }
  }
}

std::vector<Reduction> AllReductions() {
  std::vector<Reduction> all;
  for (int dtype = 0; dtype < kNumDTypes; ++dtype) {
    for (int op = 0; op < kNumReduceOps; ++op) {
      const Reduction pair(static_cast<DType>(dtype),
                           static_cast<ReduceOp>(op));
      if (reference::CanReduce(pair.first, pair.second)) all.push_back(pair);
    }
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(All, ReduceTest, testing::ValuesIn(AllReductions()),
                         [](const auto& info) {
                           return std::string(DTypeName(info.param.first)) +
                                  "_" +
                                  std::string(ReduceOpName(info.param.second));
                         });

template <typename T>
T ReduceTwo(DType dtype, ReduceOp op, T a, T b) {
  T result;
  const std::byte* sources[] = {reinterpret_cast<const std::byte*>(&a),
                                reinterpret_cast<const std::byte*>(&b)};
  Reduce(dtype, op, sources, reinterpret_cast<std::byte*>(&result), 1);
  return result;
}

TEST(ReduceValuesTest, Float32) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const auto reduce = [](ReduceOp op, float a, float b) {
    return ReduceTwo(DType::kFloat32, op, a, b);
  };
  EXPECT_EQ(reduce(ReduceOp::kSum, 1, 2), 3);
  EXPECT_EQ(reduce(ReduceOp::kProd, 3, 2), 6);
  for (ReduceOp op : {ReduceOp::kMin, ReduceOp::kMax}) {
    EXPECT_TRUE(std::isnan(reduce(op, nan, 1)));
    EXPECT_TRUE(std::isnan(reduce(op, 1, nan)));
    // min and max of equal operands, such as -0 and +0, give the first operand.
    EXPECT_TRUE(std::signbit(reduce(op, -0.0f, 0.0f)));
    EXPECT_FALSE(std::signbit(reduce(op, 0.0f, -0.0f)));
  }
}

TEST(ReduceValuesTest, SubnormalsSurviveFlushToZero) {
#if defined(__x86_64__)
  const unsigned saved = __builtin_ia32_stmxcsr();
  __builtin_ia32_ldmxcsr(saved | 0x8040);
  const float sum =
      ReduceTwo(DType::kFloat32, ReduceOp::kSum, 0x1p-140f, 0x1p-141f);
  const unsigned after = __builtin_ia32_stmxcsr();
  __builtin_ia32_ldmxcsr(saved);
  EXPECT_EQ(sum, 0x1.8p-140f);
  EXPECT_EQ(after & 0x8040, 0x8040u);
#endif
}

TEST(ReduceValuesTest, NarrowSumsRoundOnce) {
  // 256 + 1 + 1: if each sum were rounded to bfloat16, both ones would be lost.
  const uint16_t big = 0x4380, one = 0x3f80;
  const std::byte* sources[] = {reinterpret_cast<const std::byte*>(&big),
                                reinterpret_cast<const std::byte*>(&one),
                                reinterpret_cast<const std::byte*>(&one)};
  uint16_t result;
  Reduce(DType::kBfloat16, ReduceOp::kSum, sources,
         reinterpret_cast<std::byte*>(&result), 1);
  EXPECT_EQ(result, 0x4381);
}

}  // namespace
}  // namespace jax_cxl::cpu
