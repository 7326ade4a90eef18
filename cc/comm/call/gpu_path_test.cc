#include "cc/comm/call/gpu_path.h"

#include <gtest/gtest.h>

#include <array>
#include <cstdint>

namespace jax_cxl::comm {
namespace {

using plan::Op;

constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr GpuPath kKernels = {};

// A call in a job of two GPUs, which form its only group.
GpuCallFacts TwoGpus(Op op, uint64_t bytes) {
  GpuCallFacts call;
  call.op = op;
  call.bytes = bytes;
  call.members = call.world_size = 2;
  return call;
}

GpuCallFacts Aside(Op op, uint64_t bytes) {
  GpuCallFacts call = TwoGpus(op, bytes);
  call.aside = true;
  return call;
}

GpuPath PathOf(const GpuCallFacts& call) {
  return ChoosePath(call, DeviceOptions{});
}

TEST(GpuPathTest, LongCallsOfTwoGpusUseCopyEngines) {
  const struct {
    Op op;
    uint64_t from;  // the first size of copy engines
    GpuPath path;
  } cases[] = {
      {Op::kAllGather, 64, {1}},  {Op::kAllToAll, 64, {1}},
      {Op::kAllReduce, 64, {2}},  {Op::kReduceScatter, 256, {2}},
      {Op::kBroadcast, 256, {1}}, {Op::kGather, 256, {1}},
      {Op::kScatter, 256, {1}},
  };
  for (const auto& expected : cases) {
    const uint64_t from = expected.from * kMiB;
    EXPECT_EQ(PathOf(TwoGpus(expected.op, from - 1)), kKernels);
    EXPECT_EQ(PathOf(TwoGpus(expected.op, from)), expected.path);
    EXPECT_EQ(PathOf(TwoGpus(expected.op, 1024 * kMiB)), expected.path);
  }
  for (Op op : {Op::kReduce, Op::kScan, Op::kPermute, Op::kTakeRows})
    EXPECT_EQ(PathOf(TwoGpus(op, 1024 * kMiB)), kKernels);
}

TEST(GpuPathTest, ARelayNeedsMoreRoundsUnderWay) {
  GpuCallFacts call = TwoGpus(Op::kBroadcast, 16 * kMiB);
  EXPECT_EQ(PathOf(call), kKernels);
  call.relayed = true;
  EXPECT_EQ(PathOf(call), GpuPath{2});
  call.bytes = 256 * kMiB;
  EXPECT_EQ(PathOf(call), GpuPath{2});
  call.op = Op::kAllGather;
  EXPECT_EQ(PathOf(call), GpuPath{1});
}

TEST(GpuPathTest, MoreMembersAndMoreDevicesUseKernels) {
  GpuCallFacts call = TwoGpus(Op::kAllReduce, 512 * kMiB);
  call.members = call.world_size = 3;
  EXPECT_EQ(PathOf(call), kKernels);
  call = TwoGpus(Op::kAllReduce, 512 * kMiB);
  call.striped = true;
  EXPECT_EQ(PathOf(call), kKernels);
  call.aside = true;
  EXPECT_EQ(PathOf(call), GpuPath{2});
}

TEST(GpuPathTest, AsideAllButShortCallsUseCopyEngines) {
  for (int members : {2, 3, 8}) {
    GpuCallFacts call = Aside(Op::kReduce, kMiB - 1);
    call.members = call.world_size = members;
    EXPECT_EQ(PathOf(call), kKernels);
    call.bytes = kMiB;
    EXPECT_EQ(PathOf(call), GpuPath{1});
  }
  EXPECT_EQ(PathOf(Aside(Op::kReduceScatter, 8 * kMiB)), GpuPath{1});
  EXPECT_EQ(PathOf(Aside(Op::kReduceScatter, 256 * kMiB)), GpuPath{2});
  EXPECT_EQ(PathOf(Aside(Op::kAllReduce, 8 * kMiB)), GpuPath{2});
  EXPECT_EQ(PathOf(Aside(Op::kTakeRows, 256 * kMiB)), kKernels);
}

TEST(GpuPathTest, ShortCallsJoinASeriesOfCopies) {
  GpuCallFacts call = Aside(Op::kAllGather, 100);
  EXPECT_EQ(PathOf(call), kKernels) << "no series";
  for (int short_calls : {0, 63}) {
    call.short_calls = short_calls;
    EXPECT_EQ(PathOf(call), GpuPath{1}) << short_calls;
  }
  call.short_calls = 64;
  EXPECT_EQ(PathOf(call), kKernels) << "nothing but short calls";
  call.short_calls = 0;
  call.bytes = 0;
  EXPECT_EQ(PathOf(call), kKernels) << "nothing to copy";
  call.bytes = 100;
  call.aside = false;
  EXPECT_EQ(PathOf(call), kKernels) << "on XLA's stream";
}

// The job has four GPUs. So the group of two GPUs is not the only group, and
// others may communicate at the same time.
TEST(GpuPathTest, OneOfSeveralGroupsUsesCopyEnginesAside) {
  GpuCallFacts call = TwoGpus(Op::kAllReduce, 64 * kMiB);
  call.world_size = 4;
  EXPECT_EQ(PathOf(call), kKernels);
  call.aside = true;
  EXPECT_EQ(PathOf(call), GpuPath{2});
}

TEST(GpuPathTest, OptionsMoveTheThresholds) {
  DeviceOptions options;
  options.copy_engine_bytes = 4000;
  options.copy_pipelines = 2;
  EXPECT_EQ(ChoosePath(TwoGpus(Op::kAllGather, 3999), options), kKernels);
  EXPECT_EQ(ChoosePath(TwoGpus(Op::kAllGather, 4000), options), GpuPath{2});
  options.copy_engine_bytes = 0;
  EXPECT_EQ(ChoosePath(TwoGpus(Op::kAllReduce, 0), options), kKernels);
  options.copy_engine_bytes_aside = 200;
  EXPECT_TRUE(IsShort(Aside(Op::kReduce, 199), options));
  EXPECT_FALSE(IsShort(Aside(Op::kReduce, 200), options));
}

TEST(GpuPathTest, ShapesKeepAllThreads) {
  const cuda::Shape usual = DeviceOptions{}.shape;
  const uint32_t threads = usual.sending_threads + usual.receiving_threads;
  for (int op = 0; op < plan::kNumOps; ++op)
    for (int flags = 0; flags < 8; ++flags)
      for (uint64_t bytes : {uint64_t{0}, 5 * kMiB / 8, 512 * kMiB}) {
        GpuCallFacts call = TwoGpus(static_cast<Op>(op), bytes);
        call.aside = flags & 1;
        call.striped = flags & 2;
        call.relayed = flags & 4;
        const cuda::Shape shape = ChooseShape(call, DeviceOptions{});
        EXPECT_EQ(shape.sending_threads + shape.receiving_threads, threads);
        EXPECT_EQ(shape.sending_threads % 32, 0u);
        EXPECT_GE(shape.sending_threads, 32u);
        EXPECT_GE(shape.blocks, 1u);
        EXPECT_EQ(shape.blocks & (shape.blocks - 1), 0u);
        EXPECT_LE(shape.blocks, usual.blocks);
        if (call.striped) {
          EXPECT_EQ(shape.blocks, usual.blocks);
        }
      }
}

TEST(GpuPathTest, ShapesOfSomeCalls) {
  const cuda::Shape usual = DeviceOptions{}.shape;
  const auto shape_of = [](const GpuCallFacts& call) {
    return ChooseShape(call, DeviceOptions{});
  };
  EXPECT_EQ(shape_of(TwoGpus(Op::kAllReduce, 4 * kMiB)), usual);
  EXPECT_EQ(shape_of(TwoGpus(Op::kAllToAll, 4 * kMiB)),
            (cuda::Shape{64, 256, 256}));
  EXPECT_EQ(shape_of(TwoGpus(Op::kTakeRows, 4 * kMiB)),
            (cuda::Shape{64, 256, 256}));
  EXPECT_EQ(shape_of(Aside(Op::kTakeRows, 4 * kMiB)),
            (cuda::Shape{16, 256, 256}));
  GpuCallFacts relayed = TwoGpus(Op::kAllGather, 4 * kMiB);
  relayed.relayed = true;
  EXPECT_EQ(shape_of(relayed), (cuda::Shape{16, 128, 384}));
  relayed.bytes = 100 << 10;  // six blocks of 16 KiB
  EXPECT_EQ(shape_of(relayed), (cuda::Shape{4, 128, 384}));
  relayed.op = Op::kAllReduce;
  relayed.bytes = 4 * kMiB;
  EXPECT_EQ(shape_of(relayed), (cuda::Shape{32, 64, 448}));
}

TEST(GpuPathTest, OnlyLongRoundsOfTwoMembersGoOneByOne) {
  using Ahead = std::array<uint32_t, 2>;
  plan::Request request;
  request.op = Op::kAllReduce;
  request.num_ranks = 2;
  EXPECT_EQ(RoundsAhead(request, 3, 3 * kMiB), (Ahead{1, 1}));
  EXPECT_EQ(RoundsAhead(request, 3, 3 * kMiB - 1), (Ahead{2, 1}));
  EXPECT_EQ(RoundsAhead(request, 3, 3 * kMiB / 2), (Ahead{2, 1}));
  EXPECT_EQ(RoundsAhead(request, 3, 3 * kMiB / 2 - 1), (Ahead{2, 2}));
  request.num_ranks = 3;
  EXPECT_EQ(RoundsAhead(request, 3, 3 * kMiB), (Ahead{2, 2}));
  request.num_ranks = 2;
  request.op = Op::kTakeRows;
  EXPECT_EQ(RoundsAhead(request, 3, 3 * kMiB), (Ahead{2, 2}));
}

}  // namespace
}  // namespace jax_cxl::comm
