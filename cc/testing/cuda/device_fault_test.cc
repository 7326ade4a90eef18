// Tests calls that cannot complete. Each test runs in its own process, because
// a process cannot use its device after such a call.

#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <future>
#include <iostream>
#include <thread>
#include <utility>

#include "cc/base/status.h"
#include "cc/comm/call/call.h"
#include "cc/plan/plan.h"
#include "cc/testing/cuda/device_calls.h"
#include "cc/testing/cuda/device_world.h"

namespace jax_cxl::comm {
namespace {

// Checks the channels again and again, like the runtime's watcher. After the
// first error, ends the waits of all ranks and returns the error.
Status WatchUntilFailure(DeviceWorld& world) {
  const auto start = Clock::now();
  while (Clock::now() - start < std::chrono::seconds(20)) {
    for (int rank = 0; rank < world.size(); ++rank) {
      Status status = world.endpoint(rank).Check(Clock::now());
      if (status.ok()) continue;
      for (int other = 0; other < world.size(); ++other)
        world.endpoint(other).EndWaits();
      return status;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return OkStatus();
}

// Prints the first error, and whether rank 0's call failed. `enqueued` is the
// result of the thread that enqueues this call. Ends the process.
[[noreturn]] void EndWithItsError(DeviceWorld& world,
                                  std::future<Status> enqueued) {
  const Status status = WatchUntilFailure(world);
  OkOrDie(cudaSetDevice(0));
  // The call has failed if it could not be enqueued, or if a thread that waits
  // for its result gets an error.
  const bool failed = !enqueued.get().ok() ||
                      cudaStreamSynchronize(world.stream(0)) != cudaSuccess;
  std::cerr << CodeName(status.code()) << " | " << status.message() << " | "
            << (failed ? "call failed" : "call ok") << std::endl;
  std::_Exit(0);
}

// Rank 0 sums `count_0` numbers and rank 1 sums `count_1`; 0 means no call.
// Prints the error and ends the process.
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
    // Each call is enqueued by a thread of its own, because Enqueue may not
    // return: the queue may be full before it holds the whole call, and it
    // stays full while the call hangs.
    enqueued[rank] = std::async(std::launch::async, [=, count = counts[rank]] {
      Call call = Sum(rank, count);
      call.input = buffer;
      call.output = buffer + count * sizeof(int32_t);
      return world->endpoint(rank).Enqueue({0, 1}, call, world->stream(rank));
    });
  }
  EndWithItsError(*world, std::move(enqueued[0]));
}

// Each of two ranks broadcasts as the root, so neither waits for the other.
// Then both sum `count` numbers. Prints the error and ends the process.
[[noreturn]] void RunTwoRoots(uint64_t count, DeviceOptions options = {}) {
  options.timeout_s = 5;
  auto* world = new DeviceWorld(2, options);
  world->OpenChannels({0, 1});
  std::future<Status> enqueued[2];
  for (int rank = 0; rank < 2; ++rank) {
    OkOrDie(cudaSetDevice(world->device(rank)));
    std::byte* buffer = nullptr;
    OkOrDie(cudaMalloc(&buffer, 2 * count * sizeof(int32_t)));
    enqueued[rank] = std::async(std::launch::async, [=]() -> Status {
      Call call = Sum(rank, count);
      call.input = buffer;
      call.output = buffer + count * sizeof(int32_t);
      Call broadcast = call;
      broadcast.request.op = plan::Op::kBroadcast;
      broadcast.request.root = rank;
      for (const Call& next : {broadcast, call})
        CXL_RETURN_IF_ERROR(
            world->endpoint(rank).Enqueue({0, 1}, next, world->stream(rank)));
      return OkStatus();
    });
  }
  // Give the devices time to find the mismatch themselves, before the hosts
  // compare the calls.
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  EndWithItsError(*world, std::move(enqueued[0]));
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

// In the first call no rank waits, so no rank notices the mismatch, and the
// results are wrong. The next call fails.
TEST_F(DeviceEndpointTest, TwoRootsFailInTheNextCall) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  DeviceOptions by_blocks;
  by_blocks.flagged_slot_bytes = 0;
  for (const DeviceOptions& options :
       {DeviceOptions{}, by_blocks, AllByTheCopyEngines()}) {
    EXPECT_EXIT(RunTwoRoots(100, options), testing::ExitedWithCode(0),
                "MISMATCH .*broadcast.*root 0.*broadcast.*root 1.*call failed");
  }
}

TEST_F(DeviceEndpointTest, LatePeerOfMoreCopiesThanQueuesHold) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  DeviceOptions options = AllByTheCopyEngines();
  options.slot_bytes = 64 << 10;
  EXPECT_EXIT(RunDisagreement(30 << 20, 0, options), testing::ExitedWithCode(0),
              "DEADLINE_EXCEEDED .*rank 0 .*psum.*rank 1.*call failed");
}

// Two ranks exchange two rows, with a wrong entry in the table of rank 1.
// Prints the error, whether the call failed and whether a row has moved, and
// ends the process.
[[noreturn]] void RunWrongSlices() {
  DeviceOptions options;
  options.timeout_s = 5;
  auto* world = new DeviceWorld(2, options);
  world->OpenChannels({0, 1});
  const int32_t tables[2][8] = {{0, 1, 1, 1, 0, 0, 1, 1},
                                {0, 1, 1, 2, 1, 1, 1, 2}};
  std::byte* buffers[2] = {};
  constexpr uint64_t kRow = 1024, kOutput = 4096, kTable = 8192, kRest = 12288;
  for (int rank = 0; rank < 2; ++rank) {
    OkOrDie(cudaSetDevice(world->device(rank)));
    OkOrDie(cudaMalloc(&buffers[rank], 1 << 20));
    OkOrDie(cudaMemset(buffers[rank], 1, 1 << 20));
    OkOrDie(cudaMemset(buffers[rank] + kOutput, 7, 2 * kRow));
    OkOrDie(cudaMemcpy(buffers[rank] + kTable, tables[rank],
                       sizeof(tables[rank]), cudaMemcpyHostToDevice));
  }
  for (int rank = 0; rank < 2; ++rank) {
    OkOrDie(cudaSetDevice(world->device(rank)));
    Call call = Sum(rank, 2 * kRow / sizeof(int32_t));
    call.request.op = plan::Op::kRaggedAllToAll;
    call.request.rows = {.table = 2, .taken = 2, .slices = 1};
    call.input = buffers[rank];
    call.output = buffers[rank] + kOutput;
    call.row_operands.slices = buffers[rank] + kTable;
    call.row_operands.slice_entry_bytes = sizeof(int32_t);
    call.row_operands.scratch = buffers[rank] + kRest;
    OkOrDie(world->endpoint(rank).Enqueue({0, 1}, call, world->stream(rank)));
  }
  // After this time, the devices wait for their hosts to report the error.
  // Until the hosts have reported it, the devices' memory can still be read.
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  std::byte output[2 * kRow] = {};
  cudaStream_t aside = nullptr;
  OkOrDie(cudaSetDevice(world->device(0)));
  OkOrDie(cudaStreamCreateWithFlags(&aside, cudaStreamNonBlocking));
  OkOrDie(cudaMemcpyAsync(output, buffers[0] + kOutput, sizeof(output),
                          cudaMemcpyDeviceToHost, aside));
  OkOrDie(cudaStreamSynchronize(aside));
  const bool moved = std::ranges::any_of(
      output, [](std::byte b) { return b != std::byte{7}; });
  const Status status = WatchUntilFailure(*world);
  const bool failed = cudaStreamSynchronize(world->stream(0)) != cudaSuccess;
  std::cerr << CodeName(status.code()) << " | " << status.message() << " | "
            << (failed ? "call failed" : "call ok") << " | "
            << (moved ? "moved" : "nothing moved") << std::endl;
  std::_Exit(0);
}

TEST_F(DeviceEndpointTest, WrongSlicesEndInAnErrorBeforeARowMoves) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(RunWrongSlices(), testing::ExitedWithCode(0),
              "INVALID_ARGUMENT .*rank 1: input_offsets.1. = 1 and "
              "send_sizes.1. = 2 are not within the 2 rows of its operand.*"
              "call failed . nothing moved");
}

}  // namespace
}  // namespace jax_cxl::comm
