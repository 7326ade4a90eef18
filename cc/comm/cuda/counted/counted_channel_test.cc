#include "cc/comm/cuda/counted/counted_channel.h"

#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "cc/comm/cuda/pool_registration.h"
#include "cc/engine/cuda/flagged/flagged.h"
#include "cc/engine/cuda/transfers/transfers.h"
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

  // Enqueues an all-reduce in place.
  void AllReduce(int rank, int32_t* data, uint64_t count,
                 uint32_t divisor = 0) {
    const Call call = MakeCall(plan::Op::kAllReduce, rank, data, count);
    Use(rank);
    const CountedCall counted = OrDie(channels_[rank]->Prepare(call, divisor));
    OkOrDie(channels_[rank]->Launch(counted, streams_[rank]));
  }

  // Enqueues a send from rank 0 to rank 1.
  void Send(int rank, int32_t* data, uint64_t count) {
    const Call call = MakeCall(plan::Op::kBroadcast, rank, data, count);
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
  static Call MakeCall(plan::Op op, int rank, int32_t* data, uint64_t count) {
    Call call;
    call.name = "test";
    call.dtype = DType::kInt32;
    call.request.op = op;
    call.request.num_ranks = kRanks;
    call.request.rank = rank;
    call.request.count = count;
    call.request.element_bytes = sizeof(int32_t);
    call.input = reinterpret_cast<const std::byte*>(data);
    call.output = reinterpret_cast<std::byte*>(data);
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
      wrong +=
          values[i] !=
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
