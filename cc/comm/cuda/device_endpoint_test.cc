#include "cc/comm/cuda/device_endpoint.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <future>
#include <numeric>
#include <thread>

#include "cc/comm/cuda/device_world_testing.h"
#include "cc/comm/recorded_calls.h"
#include "cc/comm/soak_call_testing.h"

namespace jax_cxl::comm {
namespace {

using soak::Buffer;
using soak::Pick;
using soak::Random;
using soak::SoakCall;

constexpr uint64_t kLargest = uint64_t{48} << 20;  // bytes of one buffer

class DeviceEndpointTest : public testing::Test {
 protected:
  void SetUp() override {
    if (CountDevices() == 0) GTEST_SKIP() << "no GPU";
  }
};

Call Sum(int rank, uint64_t count) {
  Call call;
  call.name = "psum";
  call.request.op = plan::Op::kAllReduce;
  call.request.num_ranks = 2;
  call.request.rank = rank;
  call.request.count = count;
  call.request.element_bytes = 4;
  call.dtype = DType::kInt32;
  return call;
}

// Device memory of one rank for the calls of a test, one at a time.
class Scratch {
 public:
  explicit Scratch(int device) {
    OkOrDie(cudaSetDevice(device));
    OkOrDie(cudaMalloc(&input_, kLargest + 64));
    OkOrDie(cudaMalloc(&output_, kLargest + 64));
    OkOrDie(cudaMalloc(&table_, 1 << 20));
  }
  ~Scratch() {
    cudaFree(input_);
    cudaFree(output_);
    cudaFree(table_);
  }
  Scratch(const Scratch&) = delete;

  // Moves the call's buffers to the device, at the same alignment.
  void Upload(Call* call, HostPath::Table* table, cudaStream_t stream) {
    auto place = [](void* base, const std::byte* like) {
      return static_cast<std::byte*>(base) +
             reinterpret_cast<uintptr_t>(like) % 64;
    };
    host_output_ = call->output;
    input_bytes_ = plan::InputBytes(call->request);
    output_bytes_ = plan::OutputBytes(call->request);
    ASSERT_LE(std::max(input_bytes_, output_bytes_), kLargest);
    std::byte* input = place(input_, call->input);
    std::byte* output = place(output_, call->output);
    OkOrDie(cudaMemcpyAsync(input, call->input, input_bytes_,
                            cudaMemcpyHostToDevice, stream));
    OkOrDie(cudaMemcpyAsync(output, call->output, output_bytes_,
                            cudaMemcpyHostToDevice, stream));
    OkOrDie(cudaMemcpyAsync(table_, call->table.data(),
                            call->table.size() * sizeof(int64_t),
                            cudaMemcpyHostToDevice, stream));
    if (!call->table.empty())
      *table = {table_, call->table.size(), sizeof(int64_t)};
    call->table.clear();
    call->input = input;
    call->output = output;
    device_output_ = output;
  }

  void Download(cudaStream_t stream) {
    OkOrDie(cudaMemcpyAsync(host_output_, device_output_, output_bytes_,
                            cudaMemcpyDeviceToHost, stream));
  }

 private:
  void* input_ = nullptr;
  void* output_ = nullptr;
  void* table_ = nullptr;
  std::byte* host_output_ = nullptr;
  std::byte* device_output_ = nullptr;
  uint64_t input_bytes_ = 0;
  uint64_t output_bytes_ = 0;
};

enum class Way { kEnqueue, kStartAndDone };

// Runs one random call on all its members; returns its number of wrong
// elements.
uint64_t RunCall(DeviceWorld& world,
                 std::vector<std::unique_ptr<Scratch>>& scratch, SoakCall& soak,
                 Way way) {
  const std::vector<int32_t>& members = soak.members();
  world.OpenChannels(members);
  for (int32_t rank : members)
    OkOrDie(world.endpoint(rank).Reserve(soak.ForMember(0)->request));
  // All before the first call: a copy from memory that is not pinned may wait
  // for copies of other streams, and these for a rank that this thread serves
  // later.
  std::vector<std::unique_ptr<Call>> calls;
  std::vector<HostPath::Table> tables(members.size());
  for (size_t self = 0; self < members.size(); ++self) {
    const int rank = members[self];
    OkOrDie(cudaSetDevice(world.device(rank)));
    calls.push_back(soak.ForMember(static_cast<int>(self)));
    scratch[rank]->Upload(calls[self].get(), &tables[self], world.stream(rank));
    OkOrDie(cudaStreamSynchronize(world.stream(rank)));
  }
  for (size_t self = 0; self < members.size(); ++self) {
    const int rank = members[self];
    const cudaStream_t stream = world.stream(rank);
    const Call& call = *calls[self];
    OkOrDie(cudaSetDevice(world.device(rank)));
    if (way == Way::kStartAndDone && tables[self].count == 0) {
      OkOrDie(world.endpoint(rank).EnqueueStart(members, call, stream));
      OkOrDie(world.endpoint(rank).EnqueueDone(call.output, call.output, 0,
                                               stream));
    } else {
      OkOrDie(
          world.endpoint(rank).Enqueue(members, call, tables[self], stream));
    }
  }
  for (int32_t rank : members) scratch[rank]->Download(world.stream(rank));
  for (int32_t rank : members)
    OkOrDie(cudaStreamSynchronize(world.stream(rank)));
  return soak.CountWrong();
}

// Does what the runtime's watcher does, so that a call that hangs ends the test
// and says which one it was.
class Watcher {
 public:
  explicit Watcher(DeviceWorld& world)
      : thread_([this, &world] { Watch(world); }) {}
  ~Watcher() {
    stop_ = true;
    thread_.join();
  }

 private:
  void Watch(DeviceWorld& world) {
    while (!stop_) {
      for (int rank = 0; rank < world.size(); ++rank)
        OkOrDie(world.endpoint(rank).Check(Clock::now()));
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  }

  std::atomic<bool> stop_{false};
  std::thread thread_;
};

struct Setting {
  int ranks;
  uint64_t slot_bytes;
  int num_slots;
  int pool_devices;
  uint32_t blocks;
  bool direct = true;
  Way way = Way::kEnqueue;
  uint64_t copy_engine_bytes = uint64_t{12} << 20;
  uint64_t flagged_bytes = DeviceOptions().flagged_bytes;
  uint64_t first_flagged_round = 0;
};

void RunSoak(uint64_t seed, const Setting& setting, int calls, uint64_t large) {
  Random random(seed);
  DeviceOptions options;
  options.slot_bytes = setting.slot_bytes;
  options.num_slots = setting.num_slots;
  options.shape.blocks = setting.blocks;
  options.copy_engine_bytes = setting.copy_engine_bytes;
  options.copy_engine_bytes_aside = setting.copy_engine_bytes / 4;
  options.warn_after_s = 5;
  options.timeout_s = 20;
  options.flagged_bytes = setting.flagged_bytes;
  options.first_flagged_round = setting.first_flagged_round;
  DeviceWorld world(setting.ranks, options, setting.direct,
                    setting.pool_devices);
  const Watcher watcher(world);
  std::vector<std::unique_ptr<Scratch>> scratch;
  for (int rank = 0; rank < setting.ranks; ++rank)
    scratch.push_back(std::make_unique<Scratch>(world.device(rank)));
  std::vector<int32_t> everyone(setting.ranks);
  std::iota(everyone.begin(), everyone.end(), 0);
  std::vector<std::vector<int32_t>> groups = {everyone};
  std::shuffle(everyone.begin(), everyone.end(), random);
  groups.push_back(everyone);
  groups.emplace_back(everyone.begin(), everyone.begin() + 2);
  for (int i = 0; i < calls; ++i) {
    SoakCall call(random, groups[Pick(random, 0, groups.size() - 1)], i, large);
    const uint64_t wrong = RunCall(world, scratch, call, setting.way);
    ASSERT_EQ(wrong, 0u) << call.Text() << ", call " << i << " of "
                         << setting.ranks << " ranks, " << setting.num_slots
                         << " slots of " << setting.slot_bytes << ", seed "
                         << seed;
    ASSERT_TRUE(world.failure().ok()) << world.failure().message();
  }
}

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

// Without flags: barriers of blocks and doorbells for the shortest too.
TEST_F(DeviceEndpointTest, ShortCallsWithoutFlags) {
  Setting setting{3, 64 << 10, 3, 1, 8};
  setting.flagged_bytes = 0;
  RunSoak(14, setting, 300, 64 << 10);
}

TEST_F(DeviceEndpointTest, ShortCalls) {
  RunSoak(15, {2, 0, 0, 1, 32}, 1000, 64 << 10);
  RunSoak(16, {4, 0, 0, 1, 32}, 1000, 8 << 10);
}

// Flags begin anew some calls after the start.
TEST_F(DeviceEndpointTest, ManyMoreShortCallsThanFlags) {
  Setting setting{3, 0, 0, 1, 32};
  setting.first_flagged_round = (uint64_t{1} << 32) - 10;
  RunSoak(17, setting, 100, 16 << 10);
}

// Blocks in different slots, and in between whole parts by the copy engines.
TEST_F(DeviceEndpointTest, PoolsOfSeveralDevices) {
  Setting setting{4, 64 << 10, 0, 6, 16};
  setting.flagged_bytes = 0;
  RunSoak(18, setting, 300, 1 << 20);
  setting = {3, 256 << 10, 0, 3, 32};
  RunSoak(19, setting, 300, 1 << 20);
  if (CountDevices() < 2) return;
  for (uint64_t copy_engine_bytes : {4000, 400000}) {
    setting = {2, 64 << 10, 3, 3, 32, true, Way::kStartAndDone};
    setting.flagged_bytes = 0;
    setting.copy_engine_bytes = copy_engine_bytes;
    RunSoak(20, setting, 300, 1 << 20);
  }
}

// Everything by the copy engines, as beside compute, and, 1000, large and small
// calls in turn. One rank a GPU: copies of a second one may get a queue of the
// first, behind copies that wait for them.
TEST_F(DeviceEndpointTest, ByTheCopyEngines) {
  const int ranks = std::min(CountDevices(), 4);
  if (ranks < 2) GTEST_SKIP() << "one GPU";
  RunSoak(10, {ranks, 0, 0, 1, 32, true, Way::kStartAndDone, 0}, 60, 1 << 20);
  RunSoak(11, {ranks, 64 << 10, 3, 1, 16, true, Way::kStartAndDone, 0}, 60,
          1 << 20);
  RunSoak(12, {ranks, 128 << 10, 5, 3, 8, true, Way::kStartAndDone, 0}, 60,
          1 << 20);
  RunSoak(13, {ranks, 64 << 10, 2, 1, 32, true, Way::kStartAndDone, 4000}, 60,
          1 << 20);
}

TEST_F(DeviceEndpointTest, StartAndDone) {
  RunSoak(7, {3, 0, 0, 1, 32, true, Way::kStartAndDone}, 300, 1 << 20);
}

TEST_F(DeviceEndpointTest, ThroughTheHost) {
  RunSoak(8, {3, 0, 0, 1, 32, false}, 300, 1 << 20);
  RunSoak(9, {2, 0, 0, 1, 32, false, Way::kStartAndDone}, 100, 1 << 20);
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
        // Back and forth: 1, 2, 4, ..., as integers that wrap around.
        call.input = reinterpret_cast<std::byte*>(buffers[rank] +
                                                  (i % 2 == 0 ? 0 : kCount));
        call.output = reinterpret_cast<std::byte*>(buffers[rank] +
                                                   (i % 2 == 0 ? kCount : 0));
        OkOrDie(
            world.endpoint(rank).Enqueue({0, 1}, call, {}, world.stream(rank)));
        if (i == 20) {  // so that it ends with something other than 0
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

// What a rank's flight recorder says, once the host has looked at the device
// and `until` holds, or after 10 s.
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
  // In advance: an allocation may wait for the kernel that waits.
  std::byte* buffers[2];
  for (int rank : {0, 1}) {
    OkOrDie(cudaSetDevice(world.device(rank)));
    OkOrDie(cudaMalloc(&buffers[rank], 8192));
  }
  auto enqueue = [&](int rank) {
    Call call = Sum(rank, 100);
    call.input = buffers[rank];
    call.output = buffers[rank] + 4096;
    OkOrDie(world.endpoint(rank).Enqueue({0, 1}, call, {}, world.stream(rank)));
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

// --- calls that cannot be completed: each in a process of its own, because the
// device is lost with them ---

// What the runtime's watcher does; returns what it found.
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

// Ranks 0 and 1 add up so many numbers each, or none at all. Prints what it
// found and whether rank 0's call failed; ends the process.
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
    // A queue may be full before all of a call is in it, and stay so.
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
  // Whoever awaits the result of rank 0 gets an error.
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
