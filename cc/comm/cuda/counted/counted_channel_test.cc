#include "cc/comm/cuda/counted/counted_channel.h"

#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <algorithm>
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

#include "cc/comm/cuda/pool_registration.h"
#include "cc/engine/cuda/flagged/flagged.h"
#include "cc/engine/cuda/premultiplied/premultiplied.h"
#include "cc/engine/cuda/transfers/transfers.h"
#include "cc/engine/kernels/float_formats.h"
#include "cc/testing/cuda/device_world.h"
#include "cc/testing/world/world.h"

namespace jax_cxl::comm {
namespace {

constexpr int kRanks = 2;

// Two ranks of this process with a channel, on one GPU or two.
class Pair {
 public:
  explicit Pair(const DeviceOptions& options)
      : world_(kRanks, Options{}, kRanks * (uint64_t{64} << 20)) {
    const int devices = std::min(CountDevices(), kRanks);
    std::vector<int> ordinals;
    for (int device = 0; device < devices; ++device) ordinals.push_back(device);
    registration_ = OrDie(PoolRegistration::Create(
        world_.pool().base(), world_.pool().total_bytes(), ordinals));
    for (int rank = 0; rank < kRanks; ++rank) {
      Use(rank);
      OkOrDie(cuda::CudaStatus(cuda::Preload(), "loading"));
      OkOrDie(cuda::CudaStatus(cuda::PreloadFlagged(), "loading"));
      OkOrDie(cuda::CudaStatus(cuda::PreloadPremultiplied(), "loading"));
      OkOrDie(cuda::CudaStatus(cuda::PreloadTransfers(), "loading"));
      OkOrDie(plans_[rank].Open());
      channels_[rank] = std::make_unique<CountedChannel>(
          &world_.pool(rank), &world_.peers(rank), options,
          OrDie(world_.endpoint(rank).GroupOf({0, 1})), &plans_[rank]);
      OkOrDie(channels_[rank]->Open(world_.endpoint(rank).arena(),
                                    world_.endpoint(rank).recorder()));
      OkOrDie(
          cudaStreamCreateWithFlags(&streams_[rank], cudaStreamNonBlocking));
    }
    for (int rank = 0; rank < kRanks; ++rank) {
      Use(rank);
      EXPECT_TRUE(OrDie(channels_[rank]->TryConnect()));
    }
  }
  ~Pair() {
    for (int rank = 0; rank < kRanks; ++rank) {
      Use(rank);
      cudaDeviceSynchronize();
      channels_[rank].reset();
      cudaStreamDestroy(streams_[rank]);
    }
  }

  void Use(int rank) { OkOrDie(cudaSetDevice(rank % CountDevices())); }
  cudaStream_t stream(int rank) { return streams_[rank]; }
  CountedChannel& channel(int rank) { return *channels_[rank]; }

  // Enqueues a sum in place.
  void Sum(int rank, plan::Op op, DType dtype, void* data, uint64_t count,
           uint32_t divisor, const std::optional<Factor>& factor = {}) {
    Call call = MakeCall(op, rank, dtype, data, count);
    if (factor) call.name += " (premultiplied)";
    if (op == plan::Op::kReduceScatter)
      call.output += rank * plan::OutputBytes(call.request);
    Use(rank);
    const CountedCall counted =
        OrDie(channels_[rank]->Prepare(call, divisor, factor));
    OkOrDie(channels_[rank]->Launch(counted, streams_[rank]));
  }
  void AllReduce(int rank, int32_t* data, uint64_t count,
                 uint32_t divisor = 0) {
    Sum(rank, plan::Op::kAllReduce, DType::kInt32, data, count, divisor);
  }

  // Enqueues a send from rank 0 to rank 1.
  void Send(int rank, int32_t* data, uint64_t count) {
    const Call call =
        MakeCall(plan::Op::kBroadcast, rank, DType::kInt32, data, count);
    Use(rank);
    const CountedCall counted = OrDie(channels_[rank]->Prepare(call, 0));
    const bool flagged = counted.plan->plan.flagged;
    const cuda::DeviceTransfer transfer = {
        counted.device,
        flagged ? static_cast<uint32_t>(count * sizeof(int32_t)) : 0};
    OkOrDie(cuda::LaunchTransfers({&transfer, 1}, channels_[rank]->shape(),
                                  streams_[rank]));
  }

 private:
  static Call MakeCall(plan::Op op, int rank, DType dtype, void* data,
                       uint64_t count) {
    Call call;
    call.name = "test";
    call.dtype = dtype;
    call.request.op = op;
    call.request.num_ranks = kRanks;
    call.request.rank = rank;
    call.request.count = count;
    call.request.element_bytes = static_cast<uint32_t>(DTypeBytes(dtype));
    call.input = static_cast<const std::byte*>(data);
    call.output = static_cast<std::byte*>(data);
    return call;
  }

  World world_;
  std::unique_ptr<PoolRegistration> registration_;
  std::array<CountedPlans, kRanks> plans_;
  std::array<std::unique_ptr<CountedChannel>, kRanks> channels_;
  std::array<cudaStream_t, kRanks> streams_ = {};
};

// Each rank's data, in memory of its GPU.
struct Data {
  explicit Data(Pair* pair, uint64_t count) : pair(pair), count(count) {
    for (int rank = 0; rank < kRanks; ++rank) {
      pair->Use(rank);
      OkOrDie(cudaMalloc(&on_device[rank], count * sizeof(int32_t)));
    }
  }
  ~Data() {
    for (int32_t* memory : on_device) cudaFree(memory);
  }
  void Set(int rank, int32_t first) {
    std::vector<int32_t> values(count);
    for (uint64_t i = 0; i < count; ++i)
      values[i] = first + static_cast<int32_t>(i % 1000);
    pair->Use(rank);
    OkOrDie(cudaMemcpyAsync(on_device[rank], values.data(),
                            count * sizeof(int32_t), cudaMemcpyHostToDevice,
                            pair->stream(rank)));
    OkOrDie(cudaStreamSynchronize(pair->stream(rank)));
  }
  // Counts the elements that are not `times` i % 1000, plus `first`.
  uint64_t Wrong(int rank, int32_t first, int32_t divisor = 1,
                 int32_t times = 2) {
    std::vector<int32_t> values(count);
    pair->Use(rank);
    OkOrDie(cudaMemcpyAsync(values.data(), on_device[rank],
                            count * sizeof(int32_t), cudaMemcpyDeviceToHost,
                            pair->stream(rank)));
    OkOrDie(cudaStreamSynchronize(pair->stream(rank)));
    uint64_t wrong = 0;
    for (uint64_t i = 0; i < count; ++i)
      wrong += values[i] !=
               (first + times * static_cast<int32_t>(i % 1000)) / divisor;
    return wrong;
  }

  Pair* pair;
  uint64_t count;
  std::array<int32_t*, kRanks> on_device = {};
};

class CountedChannelTest : public testing::Test {
 protected:
  void SetUp() override {
    if (CountDevices() < 1) GTEST_SKIP() << "needs a GPU";
  }
};

// The flag of a short call is the low 32 bits of its round number. In place of
// a round whose flag would be 0, the device clears the rings.
TEST_F(CountedChannelTest, FlagsBeginAnew) {
  DeviceOptions options;
  options.first_flagged_round = (uint64_t{1} << 32) - 4;
  Pair pair(options);
  Data data(&pair, 5000);
  for (int turn = 0; turn < 12; ++turn) {
    for (int rank = 0; rank < kRanks; ++rank) data.Set(rank, 10 * turn + rank);
    for (int rank = 0; rank < kRanks; ++rank)
      pair.AllReduce(rank, data.on_device[rank], data.count);
    for (int rank = 0; rank < kRanks; ++rank)
      EXPECT_EQ(data.Wrong(rank, 20 * turn + 1), 0) << turn;
  }
}

// Short and long sends take turns.
TEST_F(CountedChannelTest, FlagsOfSendsBeginAnew) {
  DeviceOptions options;
  options.first_flagged_round = (uint64_t{1} << 32) - 4;
  Pair pair(options);
  Data small(&pair, 5000), large(&pair, 300001);
  for (int turn = 0; turn < 12; ++turn) {
    for (Data* data : {&small, &large}) {
      for (int rank = 0; rank < kRanks; ++rank) data->Set(rank, turn - rank);
      for (int rank = 0; rank < kRanks; ++rank)
        pair.Send(rank, data->on_device[rank], data->count);
      for (int rank = 0; rank < kRanks; ++rank)
        EXPECT_EQ(data->Wrong(rank, turn, 1, 1), 0) << turn;
    }
  }
}

// A graph with a short call, a long call and a mean runs between calls that are
// not in the graph.
TEST_F(CountedChannelTest, GraphsBetweenOtherCalls) {
  Pair pair((DeviceOptions()));
  Data small(&pair, 1000), large(&pair, 300001), mean(&pair, 777);
  const auto enqueue = [&](int rank) {
    pair.AllReduce(rank, small.on_device[rank], small.count);
    pair.AllReduce(rank, large.on_device[rank], large.count);
    pair.AllReduce(rank, mean.on_device[rank], mean.count, kRanks);
  };
  std::array<cudaGraphExec_t, kRanks> graphs = {};
  for (int rank = 0; rank < kRanks; ++rank) {
    pair.Use(rank);
    cudaGraph_t graph = nullptr;
    OkOrDie(cudaStreamBeginCapture(pair.stream(rank),
                                   cudaStreamCaptureModeRelaxed));
    enqueue(rank);
    OkOrDie(cudaStreamEndCapture(pair.stream(rank), &graph));
    OkOrDie(cudaGraphInstantiate(&graphs[rank], graph, 0));
    cudaGraphDestroy(graph);
  }
  for (int turn = 0; turn < 20; ++turn) {
    for (int rank = 0; rank < kRanks; ++rank)
      for (Data* data : {&small, &large, &mean})
        data->Set(rank, 10 * turn + rank);
    for (int rank = 0; rank < kRanks; ++rank) {
      pair.Use(rank);
      if (turn % 3 == 2)
        enqueue(rank);
      else
        OkOrDie(cudaGraphLaunch(graphs[rank], pair.stream(rank)));
    }
    for (int rank = 0; rank < kRanks; ++rank) {
      EXPECT_EQ(small.Wrong(rank, 20 * turn + 1), 0) << turn;
      EXPECT_EQ(large.Wrong(rank, 20 * turn + 1), 0) << turn;
      EXPECT_EQ(mean.Wrong(rank, 20 * turn + 1, kRanks), 0) << turn;
    }
  }
  for (cudaGraphExec_t graph : graphs) cudaGraphExecDestroy(graph);
}

// How elements of a type are made, multiplied and added on the host.
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

// Vectors of the ranks, one rank's elements on its GPU.
template <typename Format>
class Vectors {
 public:
  using T = typename Format::Storage;

  Vectors(Pair* pair, uint64_t count) : pair_(pair), count_(count) {
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

  Pair* pair_;
  uint64_t count_;
  std::array<T*, kRanks> memory_ = {};
};

// Premultiplied sums in place of one type, from a graph that runs twice, with
// factors in memory of the device, which change in between, or in the call.
template <typename Format>
void CheckPremultiplied(Pair* pair, DType dtype, plan::Op op, uint64_t count,
                        bool on_device) {
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

TEST_F(CountedChannelTest, PremultipliedSums) {
  Pair pair((DeviceOptions()));
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

TEST_F(CountedChannelTest, APremultipliedSumIsNotAPlainSum) {
  Pair pair((DeviceOptions()));
  Data data(&pair, 1000);
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

// Rank 0 gives up a call while another one is enqueued behind it. Rank 1 gets
// the first call's data, and not those of the second.
TEST_F(CountedChannelTest, CallsBehindAnAbortDoNothing) {
  for (uint64_t count : {1000, 300001}) {
    Pair pair((DeviceOptions()));
    Data first(&pair, count), second(&pair, count - 1);
    for (Data* data : {&first, &second})
      for (int rank = 0; rank < kRanks; ++rank)
        data->Set(rank, data == &first ? 0 : 7);
    pair.AllReduce(0, first.on_device[0], first.count);
    pair.AllReduce(0, second.on_device[0], second.count);
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    pair.channel(0).Abort();
    pair.Use(0);
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    pair.AllReduce(1, first.on_device[1], first.count);
    Status status;
    for (int i = 0; i < 20 && status.ok(); ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
      status = pair.channel(1).Check(Clock::now());
    }
    EXPECT_TRUE(status.ok()) << status.message();
    pair.channel(1).Abort();
    pair.Use(1);
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    // A short call has put all of its data.
    if (count == 1000) EXPECT_EQ(first.Wrong(1, 0), 0);
  }
}

TEST_F(CountedChannelTest, AMismatchNamesBothCallsAndLeavesTheDevice) {
  Pair pair((DeviceOptions()));
  Data data(&pair, 1000);
  for (int rank = 0; rank < kRanks; ++rank) {
    data.Set(rank, 0);
    pair.AllReduce(rank, data.on_device[rank], data.count - rank);
  }
  Status status;
  for (int i = 0; i < 500 && status.ok(); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    status = pair.channel(0).Check(Clock::now());
  }
  EXPECT_EQ(status.code(), Code::kMismatch);
  EXPECT_NE(status.message().find("of 1000 int32"), std::string::npos)
      << status.message();
  EXPECT_NE(status.message().find("of 999 int32"), std::string::npos)
      << status.message();
  for (int rank = 0; rank < kRanks; ++rank) pair.channel(rank).Abort();
  for (int rank = 0; rank < kRanks; ++rank) {
    pair.Use(rank);
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  }
}

}  // namespace
}  // namespace jax_cxl::comm
