// Calls that succeed. device_fault_test.cc tests calls that fail.

#include "cc/gpu/cuda/device_endpoint.h"

#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <thread>
#include <vector>

#include "cc/base/status.h"
#include "cc/comm/call/call.h"
#include "cc/comm/record/recorded_calls.h"
#include "cc/engine/gpu_plan/channel_words.h"
#include "cc/pool/coherence/doorbell.h"
#include "cc/testing/cuda/device_calls.h"
#include "cc/testing/cuda/device_soak.h"
#include "cc/testing/cuda/device_world.h"

namespace jax_cxl::comm {
namespace {

using soak::RunSoak;
using soak::Setting;
using soak::StartMode;

TEST_F(DeviceEndpointTest, RandomCalls) {
  RunSoak(1, {2, 0, 0, 1, 32}, 600, 1 << 20);
  RunSoak(2, {3, 64 << 10, 2, 1, 16}, 600, 1 << 20);
  RunSoak(3, {4, 128 << 10, 5, 3, 8}, 600, 1 << 20);
  RunSoak(4, {4, 0, 0, 1, 32}, 600, 1 << 20);
}

TEST_F(DeviceEndpointTest, LargeCalls) {
  RunSoak(5, {2, 0, 0, 1, 32}, 60, 24 << 20);
  RunSoak(6, {4, 0, 0, 2, 32}, 60, 12 << 20);
}

// Without flags, even barriers and the shortest calls go through the slots,
// with doorbells.
TEST_F(DeviceEndpointTest, ShortCallsWithoutFlags) {
  Setting setting{3, 64 << 10, 3, 1, 8};
  setting.flagged_slot_bytes = 0;
  RunSoak(14, setting, 300, 64 << 10);
}

TEST_F(DeviceEndpointTest, ShortCalls) {
  RunSoak(15, {2, 0, 0, 1, 32}, 1000, 64 << 10);
  RunSoak(16, {4, 0, 0, 1, 32}, 1000, 8 << 10);
}

// After ten rounds, the next flag would be 0. So the flags start again.
TEST_F(DeviceEndpointTest, ManyMoreShortCallsThanFlags) {
  Setting setting{3, 0, 0, 1, 32};
  setting.first_flagged_round = (uint64_t{1} << 32) - 10;
  RunSoak(17, setting, 100, 16 << 10);
}

// In a pool of several devices, the thread blocks of a kernel use different
// slots. In the last runs, some calls use the copy engines instead, which do
// not divide slots among thread blocks.
TEST_F(DeviceEndpointTest, PoolsOfSeveralDevices) {
  Setting setting{4, 64 << 10, 0, 6, 16};
  setting.flagged_slot_bytes = 0;
  RunSoak(18, setting, 300, 1 << 20);
  setting = {3, 256 << 10, 0, 3, 32};
  RunSoak(19, setting, 300, 1 << 20);
  if (CountDevices() < 2) return;
  for (uint64_t copy_engine_bytes : {4000, 400000}) {
    setting = {2, 64 << 10, 3, 3, 32, StartMode::kStartAndDone};
    setting.flagged_slot_bytes = 0;
    setting.copy_engine_bytes = copy_engine_bytes;
    RunSoak(20, setting, 300, 1 << 20);
  }
}

// The last number of a setting is copy_engine_bytes. With 0, all calls use the
// copy engines, as calls beside computation do. With a larger number, only
// large calls use them, and alternate with small calls by kernels. Each rank
// has its own GPU. If two ranks shared a GPU, copies of one rank might end up
// in a queue behind copies that wait for them.
TEST_F(DeviceEndpointTest, ByTheCopyEngines) {
  const int ranks = std::min(CountDevices(), 4);
  if (ranks < 2) GTEST_SKIP() << "needs two GPUs";
  RunSoak(10, {ranks, 0, 0, 1, 32, StartMode::kStartAndDone, 0}, 60, 1 << 20);
  RunSoak(11, {ranks, 64 << 10, 3, 1, 16, StartMode::kStartAndDone, 0}, 60,
          1 << 20);
  RunSoak(12, {ranks, 128 << 10, 5, 3, 8, StartMode::kStartAndDone, 0}, 60,
          1 << 20);
  RunSoak(13, {ranks, 64 << 10, 2, 1, 32, StartMode::kStartAndDone, 4000}, 60,
          1 << 20);
  // Some of these calls use single slots, some use few slots, and some use
  // pairs of slots.
  RunSoak(21, {2, 64 << 10, 6, 1, 32, StartMode::kStartAndDone, 100000}, 200,
          2 << 20);
}

// Calls of a series overlap. If copy_engine_bytes is 4,000 or 1,000,000,
// shorter calls use kernels, and interrupt the series.
TEST_F(DeviceEndpointTest, SeriesOfCallsByTheCopyEngines) {
  const int ranks = std::min(CountDevices(), 4);
  if (ranks < 2) GTEST_SKIP() << "needs two GPUs";
  for (uint64_t copy_engine_bytes : {0, 4000, 1000000}) {
    Setting setting{
        ranks, 0, 0, 1, 32, StartMode::kStartAndDone, copy_engine_bytes};
    soak::RunBatches(31, setting, 6, 15, 4 << 20);
    setting.slot_bytes = 64 << 10;
    setting.num_slots = 3;
    soak::RunBatches(32, setting, 6, 10, 1 << 20);
    setting.num_slots = 6;
    setting.coherence = pool::CoherenceMode::kFlush;
    soak::RunBatches(33, setting, 6, 10, 1 << 20);
  }
}

TEST_F(DeviceEndpointTest, StartAndDone) {
  RunSoak(7, {3, 0, 0, 1, 32, StartMode::kStartAndDone}, 300, 1 << 20);
}

// The flush instructions are real, but this machine's memory would be coherent
// without them. So this test cannot find a flush that is missing.
// cc/gpu/relay/relay_test.cc can, because it uses memory without coherence.
TEST_F(DeviceEndpointTest, FlushPools) {
  for (bool gpu_writes_memory : {false, true}) {
    Setting setting{3, 0, 0, 1, 32};
    setting.coherence = pool::CoherenceMode::kFlush;
    setting.gpu_writes_memory = gpu_writes_memory;
    RunSoak(22, setting, 300, 1 << 20);
    setting.num_slots = 3;
    setting.slot_bytes = 64 << 10;
    RunSoak(23, setting, 200, 1 << 20);
    setting.first_flagged_round = (uint64_t{1} << 32) - 10;
    RunSoak(34, setting, 300, 16 << 10);
  }
}

TEST_F(DeviceEndpointTest, FlushPoolsOfSeveralDevices) {
  Setting setting{4, 64 << 10, 0, 6, 16};
  setting.coherence = pool::CoherenceMode::kFlush;
  RunSoak(24, setting, 200, 1 << 20);
}

TEST_F(DeviceEndpointTest, FlushPoolsByTheCopyEngines) {
  const int ranks = std::min(CountDevices(), 4);
  if (ranks < 2) GTEST_SKIP() << "needs two GPUs";
  for (uint64_t copy_engine_bytes : {0, 4000}) {
    Setting setting{
        ranks, 64 << 10, 6, 1, 32, StartMode::kStartAndDone, copy_engine_bytes};
    setting.coherence = pool::CoherenceMode::kFlush;
    RunSoak(25, setting, 100, 1 << 20);
  }
}

// Devices use the words of the pool directly, as in a coherent pool.
TEST_F(DeviceEndpointTest, UncachedPools) {
  Setting setting{3, 0, 0, 1, 32};
  setting.coherence = pool::CoherenceMode::kUncached;
  RunSoak(26, setting, 300, 1 << 20);
}

TEST_F(DeviceEndpointTest, ManyCallsInFlight) {
  DeviceWorld world(2, {});
  world.OpenChannels({0, 1});
  constexpr int kCalls = 2000, kCount = 300;
  std::vector<int32_t*> buffers;
  for (int rank = 0; rank < 2; ++rank) {
    OkOrDie(cudaSetDevice(world.device(rank)));
    int32_t* buffer = nullptr;
    OkOrDie(cudaMalloc(&buffer, 2 * kCount * sizeof(int32_t)));
    const std::vector<int32_t> ones(kCount, 1);
    OkOrDie(cudaMemcpy(buffer, ones.data(), kCount * sizeof(int32_t),
                       cudaMemcpyHostToDevice));
    buffers.push_back(buffer);
  }
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      Call call = Sum(rank, kCount);
      for (int i = 0; i < kCalls; ++i) {
        // The calls go back and forth between two halves of the buffer. The
        // values are 1, 2, 4, ..., as integers that wrap around.
        call.input = reinterpret_cast<std::byte*>(buffers[rank] +
                                                  (i % 2 == 0 ? 0 : kCount));
        call.output = reinterpret_cast<std::byte*>(buffers[rank] +
                                                   (i % 2 == 0 ? kCount : 0));
        OkOrDie(world.endpoint(rank).Enqueue({0, 1}, call, world.stream(rank)));
        if (i == 20) {  // so that the result is not 0
          OkOrDie(cudaStreamSynchronize(world.stream(rank)));
        }
      }
      OkOrDie(cudaStreamSynchronize(world.stream(rank)));
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(world.endpoint(0).stats().calls, uint64_t{kCalls});
  for (int32_t* buffer : buffers) cudaFree(buffer);
}

// A rank's memory has space for only one group. The two groups have the same
// ranks, in different orders. So each switch between the groups takes the
// memory from the other one.
TEST_F(DeviceEndpointTest, GroupsTakeTheMemoryOfOthers) {
  DeviceOptions options;
  options.slot_bytes = 1 << 20;
  options.num_slots = 3;
  constexpr uint64_t kGroupBytes = sizeof(cuda::DeviceControl) + (3 << 20);
  // Rounded down to whole pages.
  constexpr uint64_t kRankBytes = kGroupBytes * 3 / 2 / 4096 * 4096;
  DeviceWorld world(2, options, 1, kRankBytes);
  world.OpenChannels({0, 1});
  constexpr int kCalls = 90, kCount = 40000;  // flags, and slots
  std::vector<int32_t*> inputs, outputs;
  for (int rank = 0; rank < 2; ++rank) {
    OkOrDie(cudaSetDevice(world.device(rank)));
    inputs.emplace_back();
    outputs.emplace_back();
    OkOrDie(cudaMalloc(&inputs.back(), kCount * sizeof(int32_t)));
    OkOrDie(cudaMalloc(&outputs.back(), kCalls * kCount * sizeof(int32_t)));
    std::vector<int32_t> values(kCount);
    for (int i = 0; i < kCount; ++i) values[i] = 1000 * rank + i;
    OkOrDie(cudaMemcpy(inputs.back(), values.data(), kCount * sizeof(int32_t),
                       cudaMemcpyHostToDevice));
  }
  const auto count = [](int call) { return call % 2 == 0 ? kCount : 300; };
  std::atomic<bool> done = false;
  std::thread checking([&] {
    while (!done)
      for (int rank = 0; rank < 2; ++rank)
        OkOrDie(world.endpoint(rank).Check(Clock::now()));
  });
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      for (int i = 0; i < kCalls; ++i) {
        const bool reversed = i % 7 > 3;
        Call call = Sum(reversed ? 1 - rank : rank, count(i));
        call.input = reinterpret_cast<std::byte*>(inputs[rank]);
        call.output = reinterpret_cast<std::byte*>(outputs[rank] + i * kCount);
        OkOrDie(world.endpoint(rank).Enqueue(
            reversed ? std::vector<int32_t>{1, 0} : std::vector<int32_t>{0, 1},
            call, world.stream(rank)));
      }
      OkOrDie(cudaStreamSynchronize(world.stream(rank)));
    });
  }
  for (std::thread& thread : threads) thread.join();
  done = true;
  checking.join();
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(world.endpoint(rank).stats().calls, uint64_t{kCalls});
    std::vector<int32_t> found(kCount);
    for (int call = 0; call < kCalls; ++call) {
      OkOrDie(cudaMemcpy(found.data(), outputs[rank] + call * kCount,
                         count(call) * sizeof(int32_t),
                         cudaMemcpyDeviceToHost));
      int wrong = 0;
      for (int i = 0; i < count(call); ++i) wrong += found[i] != 1000 + 2 * i;
      EXPECT_EQ(wrong, 0) << "call " << call << " of rank " << rank;
    }
    cudaFree(inputs[rank]);
    cudaFree(outputs[rank]);
  }
}

// Checks the device until `until` returns true for the rank's newest recorded
// call, or for 10 s. Then returns the rank's recorded calls.
template <typename Until>
std::vector<RecordedCall> LookUntil(DeviceWorld& world, int rank, Until until) {
  const pool::Doorbells doorbells(world.pool().coherence(),
                                  world.pool().epoch());
  const auto start = Clock::now();
  for (;;) {
    OkOrDie(world.endpoint(rank).Check(Clock::now()));
    std::vector<RecordedCall> calls =
        ReadCalls(*world.pool().recorder(rank), doorbells, 10);
    if ((!calls.empty() && until(calls.back())) ||
        Clock::now() - start > std::chrono::seconds(10))
      return calls;
  }
}

TEST_F(DeviceEndpointTest, TheFlightRecorderSaysWhoWaitsForWhom) {
  DeviceWorld world(2, {});
  world.OpenChannels({0, 1});
  // Allocate the buffers in advance. A later allocation might wait for the
  // kernel of rank 0, which waits for rank 1.
  std::byte* buffers[2];
  for (int rank : {0, 1}) {
    OkOrDie(cudaSetDevice(world.device(rank)));
    OkOrDie(cudaMalloc(&buffers[rank], 8192));
  }
  auto enqueue = [&](int rank) {
    Call call = Sum(rank, 100);
    call.input = buffers[rank];
    call.output = buffers[rank] + 4096;
    OkOrDie(world.endpoint(rank).Enqueue({0, 1}, call, world.stream(rank)));
  };
  enqueue(0);
  const auto waiting = LookUntil(
      world, 0, [](const RecordedCall& call) { return call.waiting_for == 1; });
  ASSERT_EQ(waiting.size(), 1u);
  EXPECT_EQ(waiting[0].name, "psum");
  EXPECT_EQ(waiting[0].waiting_for, 1);
  EXPECT_EQ(waiting[0].started, 0);

  enqueue(1);
  uint64_t identity[2], group[2];
  for (int rank : {0, 1}) {
    const auto done = LookUntil(world, rank, [](const RecordedCall& call) {
      return call.finished != 0;
    });
    ASSERT_EQ(done.size(), 1u);
    EXPECT_NE(done[0].started, 0);
    EXPECT_GE(done[0].finished, done[0].started);
    EXPECT_EQ(done[0].code, Code::kOk);
    identity[rank] = done[0].identity;
    group[rank] = done[0].group;
  }
  EXPECT_EQ(identity[0], identity[1]);
  EXPECT_EQ(group[0], group[1]);
  for (std::byte* buffer : buffers) cudaFree(buffer);
}

}  // namespace
}  // namespace jax_cxl::comm
