#include "cc/gpu/cuda/channel/counted_channel.h"

#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <string>
#include <thread>

#include "cc/testing/cuda/counted_pair.h"

namespace jax_cxl::comm {
namespace {

class CountedChannelTest : public testing::Test {
 protected:
  void SetUp() override {
    if (CountDevices() < 1) GTEST_SKIP() << "needs a GPU";
  }
};

// The flag of a short call is the low 32 bits of its round number. The device
// skips the round whose flag would be 0, and clears the rings instead.
TEST_F(CountedChannelTest, FlagsBeginAnew) {
  DeviceOptions options;
  options.first_flagged_round = (uint64_t{1} << 32) - 4;
  CountedPair pair(options);
  CountedData data(&pair, 5000);
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
  CountedPair pair(options);
  CountedData small(&pair, 5000), large(&pair, 300001);
  for (int turn = 0; turn < 12; ++turn) {
    for (CountedData* data : {&small, &large}) {
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
  CountedPair pair((DeviceOptions()));
  CountedData small(&pair, 1000), large(&pair, 300001), mean(&pair, 777);
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
      for (CountedData* data : {&small, &large, &mean})
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

// Rank 0 gives up a call while another call is enqueued behind it. Rank 1 gets
// the data of the first call, but not the data of the second.
TEST_F(CountedChannelTest, CallsBehindAnAbortDoNothing) {
  for (uint64_t count : {1000, 300001}) {
    CountedPair pair((DeviceOptions()));
    CountedData first(&pair, count), second(&pair, count - 1);
    for (CountedData* data : {&first, &second})
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
    // Rank 0 had put all data of a short call before it gave up.
    if (count == 1000) {
      EXPECT_EQ(first.Wrong(1, 0), 0);
    }
  }
}

TEST_F(CountedChannelTest, AMismatchNamesBothCallsAndLeavesTheDevice) {
  CountedPair pair((DeviceOptions()));
  CountedData data(&pair, 1000);
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
