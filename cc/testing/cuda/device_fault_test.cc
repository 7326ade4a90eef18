// Calls that cannot complete. Each has its own process, because the device is
// lost with the call.

#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <future>
#include <iostream>
#include <thread>

#include "cc/base/status.h"
#include "cc/comm/call/call.h"
#include "cc/testing/cuda/device_calls.h"
#include "cc/testing/cuda/device_world.h"

namespace jax_cxl::comm {
namespace {

// Checks the channels like the runtime's watcher. Returns the first error.
Status WatchUntilFailure(DeviceWorld& world) {
  const auto start = Clock::now();
  while (Clock::now() - start < std::chrono::seconds(20)) {
    for (int rank = 0; rank < world.size(); ++rank) {
      Status status = world.endpoint(rank).Check(Clock::now());
      if (status.ok()) continue;
      for (int other = 0; other < world.size(); ++other)
        world.endpoint(other).Abort();
      return status;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return OkStatus();
}

// Ranks 0 and 1 sum `count_0` and `count_1` numbers; 0 means no call. Prints
// the error and whether rank 0's call failed, and ends the process.
[[noreturn]] void RunDisagreement(uint64_t count_0, uint64_t count_1,
                                  DeviceOptions options = {}) {
  options.timeout_s = 1;
  options.warn_after_s = 0.3;
  auto* world = new DeviceWorld(2, options);
  world->OpenChannels({0, 1});
  const uint64_t counts[] = {count_0, count_1};
  std::future<Status> enqueued[2];
  for (int rank = 0; rank < 2; ++rank) {
    if (counts[rank] == 0) continue;
    OkOrDie(cudaSetDevice(world->device(rank)));
    std::byte* buffer = nullptr;
    OkOrDie(cudaMalloc(&buffer, 2 * counts[rank] * sizeof(int32_t)));
    // A queue may be full before all of a call is in it, and stay full.
    enqueued[rank] = std::async(std::launch::async, [=, count = counts[rank]] {
      Call call = Sum(rank, count);
      call.input = buffer;
      call.output = buffer + count * sizeof(int32_t);
      return world->endpoint(rank).Enqueue({0, 1}, call, {},
                                           world->stream(rank));
    });
  }
  const Status status = WatchUntilFailure(*world);
  OkOrDie(cudaSetDevice(0));
  // A thread that waits for the result of rank 0 gets an error.
  const bool failed = !enqueued[0].get().ok() ||
                      cudaStreamSynchronize(world->stream(0)) != cudaSuccess;
  std::cerr << CodeName(status.code()) << " | " << status.message() << " | "
            << (failed ? "call failed" : "call ok") << std::endl;
  std::_Exit(0);
}

TEST_F(DeviceEndpointTest, LatePeerEndsInAnErrorThatNamesIt) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(RunDisagreement(100, 0), testing::ExitedWithCode(0),
              "DEADLINE_EXCEEDED .*rank 0 .*psum.*rank 1.*call failed");
}

TEST_F(DeviceEndpointTest, MismatchEndsInAnErrorThatNamesBothSides) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(RunDisagreement(100, 101), testing::ExitedWithCode(0),
              "MISMATCH .*100 int32.*101 int32.*call failed");
}

DeviceOptions AllByTheCopyEngines() {
  DeviceOptions options;
  options.copy_engine_bytes = 0;
  return options;
}

TEST_F(DeviceEndpointTest, LatePeerOfCopies) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(RunDisagreement(100000, 0, AllByTheCopyEngines()),
              testing::ExitedWithCode(0),
              "DEADLINE_EXCEEDED .*rank 0 .*psum.*rank 1.*call failed");
}

TEST_F(DeviceEndpointTest, MismatchOfCopies) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(RunDisagreement(100000, 100001, AllByTheCopyEngines()),
              testing::ExitedWithCode(0),
              "MISMATCH .*100000 int32.*100001 int32.*call failed");
}

TEST_F(DeviceEndpointTest, LatePeerOfMoreCopiesThanQueuesHold) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  DeviceOptions options = AllByTheCopyEngines();
  options.slot_bytes = 64 << 10;
  EXPECT_EXIT(RunDisagreement(30 << 20, 0, options), testing::ExitedWithCode(0),
              "DEADLINE_EXCEEDED .*rank 0 .*psum.*rank 1.*call failed");
}

}  // namespace
}  // namespace jax_cxl::comm
