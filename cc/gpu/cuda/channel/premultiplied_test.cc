#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

#include "cc/engine/kernels/float_formats.h"
#include "cc/gpu/cuda/channel/counted_channel.h"
#include "cc/testing/cuda/counted_pair.h"

// Premultiplied sums.
namespace jax_cxl::comm {
namespace {

class PremultipliedTest : public testing::Test {
 protected:
  void SetUp() override {
    if (CountDevices() < 1) GTEST_SKIP() << "needs a GPU";
  }
};

// How the host computes with the elements of a type. Widen converts an element
// to the type in which elements are multiplied and added, and Narrow converts
// the result back.
template <typename T>
struct PlainFloat {
  using Storage = T;
  static T Widen(T v) { return v; }
  static T Narrow(T v) { return v; }
};
template <typename T>
struct WrappingInteger {
  using Storage = T;
  static uint64_t Widen(T v) { return static_cast<uint64_t>(v); }
  static T Narrow(uint64_t v) { return static_cast<T>(v); }
};

template <typename Format>
typename Format::Storage ElementOf(uint64_t number) {
  if constexpr (std::is_same_v<decltype(Format::Widen({})), uint64_t>)
    return Format::Narrow(number * 0x9e3779b97f4a7c15 >> 7);
  else
    return Format::Narrow(0.037f * static_cast<float>(number % 1013) - 11);
}

// A vector for each rank, in the memory of the rank's GPU.
template <typename Format>
class Vectors {
 public:
  using T = typename Format::Storage;

  Vectors(CountedPair* pair, uint64_t count) : pair_(pair), count_(count) {
    for (int rank = 0; rank < kRanks; ++rank) {
      pair_->Use(rank);
      OkOrDie(cudaMalloc(&memory_[rank], count * sizeof(T)));
    }
  }
  ~Vectors() {
    for (T* memory : memory_) cudaFree(memory);
  }
  Vectors(const Vectors&) = delete;
  Vectors& operator=(const Vectors&) = delete;

  T* on_device(int rank) { return memory_[rank]; }

  void Set(int rank, const std::vector<T>& elements) {
    Copy(rank, memory_[rank], elements.data());
  }
  std::vector<T> Get(int rank) {
    std::vector<T> elements(count_);
    Copy(rank, elements.data(), memory_[rank]);
    return elements;
  }

 private:
  void Copy(int rank, T* to, const T* from) {
    pair_->Use(rank);
    OkOrDie(cudaMemcpyAsync(to, from, count_ * sizeof(T), cudaMemcpyDefault,
                            pair_->stream(rank)));
    OkOrDie(cudaStreamSynchronize(pair_->stream(rank)));
  }

  CountedPair* pair_;
  uint64_t count_;
  std::array<T*, kRanks> memory_ = {};
};

// Checks premultiplied sums of one type. They work in place, and a graph runs
// them twice. If `on_device` is true, the factors are in device memory and
// change between the two runs. Otherwise they are in the call.
template <typename Format>
void CheckPremultiplied(CountedPair* pair, DType dtype, plan::Op op,
                        uint64_t count, bool on_device) {
  using T = typename Format::Storage;
  const bool scatters = op == plan::Op::kReduceScatter;
  const uint64_t size = scatters ? kRanks * count : count;
  Vectors<Format> data(pair, size), factors(pair, 1);
  const auto factor_of = [&](int rank, int turn) {
    return ElementOf<Format>(500 + 100 * rank + (on_device ? 7 * turn : 0));
  };
  std::array<cudaGraphExec_t, kRanks> graphs = {};
  for (int rank = 0; rank < kRanks; ++rank) {
    Factor factor;
    if (on_device) {
      factor.at = factors.on_device(rank);
    } else {
      const T value = factor_of(rank, 0);
      std::memcpy(&factor.bits, &value, sizeof(value));
    }
    pair->Use(rank);
    cudaGraph_t graph = nullptr;
    OkOrDie(cudaStreamBeginCapture(pair->stream(rank),
                                   cudaStreamCaptureModeRelaxed));
    pair->Sum(rank, op, dtype, data.on_device(rank), count, 0, factor);
    OkOrDie(cudaStreamEndCapture(pair->stream(rank), &graph));
    OkOrDie(cudaGraphInstantiate(&graphs[rank], graph, 0));
    cudaGraphDestroy(graph);
  }
  for (int turn = 0; turn < 2; ++turn) {
    std::vector<T> want(size);
    for (int rank = 0; rank < kRanks; ++rank) {
      const T factor = factor_of(rank, turn);
      std::vector<T> elements(size);
      for (uint64_t i = 0; i < size; ++i) {
        elements[i] = ElementOf<Format>(i + 31 * rank + turn);
        const T product =
            Format::Narrow(Format::Widen(elements[i]) * Format::Widen(factor));
        want[i] = rank == 0 ? product
                            : Format::Narrow(Format::Widen(want[i]) +
                                             Format::Widen(product));
      }
      data.Set(rank, elements);
      factors.Set(rank, {factor});
    }
    for (int rank = 0; rank < kRanks; ++rank) {
      pair->Use(rank);
      OkOrDie(cudaGraphLaunch(graphs[rank], pair->stream(rank)));
    }
    for (int rank = 0; rank < kRanks; ++rank) {
      const std::vector<T> got = data.Get(rank);
      const uint64_t first = scatters ? rank * count : 0;
      EXPECT_TRUE(std::equal(want.begin() + first, want.begin() + first + count,
                             got.begin() + first))
          << DTypeName(dtype) << " " << plan::OpName(op) << " of " << count
          << ", turn " << turn << ", rank " << rank;
    }
  }
  for (cudaGraphExec_t graph : graphs) cudaGraphExecDestroy(graph);
}

TEST_F(PremultipliedTest, PremultipliedSums) {
  CountedPair pair((DeviceOptions()));
  for (plan::Op op : {plan::Op::kAllReduce, plan::Op::kReduceScatter}) {
    for (uint64_t count : {1, 1003, 300001}) {
      for (bool on_device : {false, true}) {
        const auto check = [&]<typename Format>(DType dtype) {
          CheckPremultiplied<Format>(&pair, dtype, op, count, on_device);
        };
        check.template operator()<PlainFloat<float>>(DType::kFloat32);
        check.template operator()<PlainFloat<double>>(DType::kFloat64);
        check.template operator()<cpu::Bfloat16>(DType::kBfloat16);
        check.template operator()<cpu::Float16>(DType::kFloat16);
        check.template operator()<cpu::Float8E4M3Fn>(DType::kFloat8E4M3Fn);
        check.template operator()<WrappingInteger<int32_t>>(DType::kInt32);
        check.template operator()<WrappingInteger<int8_t>>(DType::kInt8);
        check.template operator()<WrappingInteger<int64_t>>(DType::kInt64);
      }
    }
  }
}

TEST_F(PremultipliedTest, APremultipliedSumIsNotAPlainSum) {
  CountedPair pair((DeviceOptions()));
  CountedData data(&pair, 1000);
  for (int rank = 0; rank < kRanks; ++rank) {
    data.Set(rank, 0);
    pair.Sum(rank, plan::Op::kAllReduce, DType::kInt32, data.on_device[rank],
             data.count, 0,
             rank == 0 ? std::optional<Factor>() : std::optional(Factor{3}));
  }
  Status status;
  for (int i = 0; i < 500 && status.ok(); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    status = pair.channel(0).Check(Clock::now());
  }
  EXPECT_EQ(status.code(), Code::kMismatch);
  for (const char* call : {"calls test: ", "calls test (premultiplied): "})
    EXPECT_NE(status.message().find(call), std::string::npos)
        << status.message();
  for (int rank = 0; rank < kRanks; ++rank) pair.channel(rank).Abort();
}

}  // namespace
}  // namespace jax_cxl::comm
