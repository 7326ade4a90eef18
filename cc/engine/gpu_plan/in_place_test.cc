// Sanitizers: address

#include "cc/engine/gpu_plan/in_place.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "cc/engine/gpu_plan/flagged_ring.h"
#include "cc/plan/gpu_geometry.h"
#include "cc/plan/planners/make_plan.h"

namespace jax_cxl::cuda {
namespace {

using plan::Op;
using plan::Request;

constexpr Stripes kInPlaceStripes = {8, 128};

Result<GpuPlan> MakeOrdered(Op op, int num_ranks, int rank, uint64_t count,
                            int64_t shift) {
  Request request;
  request.op = op;
  request.num_ranks = num_ranks;
  request.rank = rank;
  request.count = count;
  plan::Geometry geometry;
  geometry.slot_bytes = kInPlaceStripes.period() * num_ranks;
  geometry.all_read_bytes = 0;
  geometry.part_alignment = kInPlaceStripes.period();
  CXL_ASSIGN_OR_RETURN(const plan::Plan plan,
                       plan::MakePlan(request, geometry));
  CXL_ASSIGN_OR_RETURN(GpuPlan gpu_plan,
                       MakeGpuPlan(plan, rank, kInPlaceStripes));
  CXL_RETURN_IF_ERROR(OrderInPlace(shift, kInPlaceStripes, &gpu_plan));
  return gpu_plan;
}

// Executes each receiving step as early as it may run, and each put only when a
// receiving step waits for it. Returns true if no put reads a byte that has
// been overwritten.
bool PutsComeFirst(const GpuPlan& gpu_plan, int64_t shift, uint64_t bytes) {
  std::vector<bool> overwritten(bytes);
  uint32_t sent = 0;
  const auto send_until = [&](uint32_t steps) {
    for (; sent < steps; ++sent) {
      const DeviceStep& put = gpu_plan.sending[sent];
      if (put.kind != DeviceStepKind::kPut) continue;
      for (uint64_t i = put.from; i < put.from + put.bytes; ++i)
        if (overwritten[i]) return false;
    }
    return true;
  };
  for (const DeviceStep& step : gpu_plan.receiving) {
    if (!send_until(step.after)) return false;
    if (step.kind != DeviceStepKind::kGet &&
        step.kind != DeviceStepKind::kReduce &&
        step.kind != DeviceStepKind::kReduceToBoth)
      continue;
    for (uint64_t i = step.to; i < step.to + step.bytes; ++i) {
      const int64_t at = static_cast<int64_t>(i) + shift;
      if (at >= 0 && at < static_cast<int64_t>(bytes)) overwritten[at] = true;
    }
  }
  return send_until(static_cast<uint32_t>(gpu_plan.sending.size()));
}

struct WayInPlace {
  Op op;
  int64_t shift;
  uint64_t input;  // bytes
};

// Returns the ways in which NCCL lets the input and output of a rank overlap.
std::vector<WayInPlace> WaysInPlace(int num_ranks, int rank, uint64_t count) {
  const auto own = static_cast<int64_t>(rank * count);
  return {{Op::kAllReduce, 0, count},
          {Op::kReduce, 0, count},
          {Op::kBroadcast, 0, count},
          {Op::kAllToAll, 0, num_ranks * count},
          {Op::kAllGather, -own, count},
          {Op::kReduceScatter, own, num_ranks * count},
          {Op::kGather, -own, count},
          {Op::kScatter, own, rank == 0 ? num_ranks * count : 0}};
}

TEST(InPlaceTest, NoPutReadsAResult) {
  for (int num_ranks : {2, 3, 4, 8}) {
    for (uint64_t count : {1, 1000, 100000}) {
      for (int rank = 0; rank < num_ranks; ++rank) {
        for (const auto& [op, shift, input] :
             WaysInPlace(num_ranks, rank, count)) {
          const auto gpu_plan = MakeOrdered(op, num_ranks, rank, count, shift);
          ASSERT_TRUE(gpu_plan.ok())
              << plan::OpName(op) << ", " << num_ranks << " ranks, " << count
              << ": " << gpu_plan.status().message();
          EXPECT_TRUE(PutsComeFirst(*gpu_plan, shift, input))
              << plan::OpName(op) << ", " << num_ranks << " ranks, " << count;
        }
      }
    }
  }
}

// Checks that PutsComeFirst can fail: without the waits of OrderInPlace, an
// all-reduce of two ranks overwrites bytes before it puts them.
TEST(InPlaceTest, WithoutTheOrder) {
  auto gpu_plan = MakeOrdered(Op::kAllReduce, 2, 0, 100000, 0);
  ASSERT_TRUE(gpu_plan.ok());
  for (DeviceStep& step : gpu_plan->receiving) step.after = 0;
  EXPECT_FALSE(PutsComeFirst(*gpu_plan, 0, 100000));
}

// Executes a short message with `threads` threads, one after another. Returns
// true if no step reads a byte that another thread has overwritten.
bool ThreadsReadFirst(const GpuPlan& gpu_plan, int64_t shift, uint64_t bytes,
                      uint64_t threads) {
  std::vector<bool> overwritten(bytes);
  bool right = true;
  for (uint64_t thread = 0; thread < threads; ++thread) {
    const auto visit = [&](const std::vector<DeviceStep>& steps,
                           DeviceStepKind kind) {
      uint64_t unit = 0;
      for (const DeviceStep& step : steps) {
        if (step.kind != kind) continue;
        for (uint64_t at = 0; at < step.bytes;
             at += flagged::kUnitBytes, ++unit) {
          if (unit % threads != thread) continue;
          const uint64_t end = std::min(at + flagged::kUnitBytes, step.bytes);
          const auto each = [&](int64_t begin, const auto& action) {
            for (uint64_t i = at; i < end; ++i)
              if (begin + static_cast<int64_t>(i) >= 0 &&
                  begin + i < overwritten.size())
                action(begin + i);
          };
          const auto read = [&](uint64_t begin) {
            each(begin, [&](uint64_t i) { right = right && !overwritten[i]; });
          };
          const int64_t to = static_cast<int64_t>(step.to) + shift;
          const bool stays = kind == DeviceStepKind::kCopy &&
                             to == static_cast<int64_t>(step.from);
          if (kind == DeviceStepKind::kPut ||
              (kind == DeviceStepKind::kCopy && !stays))
            read(step.from);
          if (kind == DeviceStepKind::kReduce) read(step.input_from);
          if (kind != DeviceStepKind::kPut && !stays)
            each(to, [&](uint64_t i) { overwritten[i] = true; });
        }
      }
    };
    visit(gpu_plan.sending, DeviceStepKind::kPut);
    visit(gpu_plan.sending, DeviceStepKind::kCopy);
    visit(gpu_plan.sending, DeviceStepKind::kZero);
    visit(gpu_plan.receiving, DeviceStepKind::kGet);
    visit(gpu_plan.receiving, DeviceStepKind::kReduce);
  }
  return right;
}

Result<GpuPlan> MakeShort(Op op, int num_ranks, int rank, uint64_t count) {
  Request request;
  request.op = op;
  request.num_ranks = num_ranks;
  request.rank = rank;
  request.count = count;
  CXL_ASSIGN_OR_RETURN(
      const plan::Plan plan,
      plan::MakePlan(request, plan::FlaggedGeometry(num_ranks)));
  return MakeGpuPlan(plan, rank, Stripes{1, 16});
}

TEST(InPlaceTest, ThreadsOfShortMessagesReadFirst) {
  for (int num_ranks : {2, 3, 5}) {
    for (uint64_t count : {1, 16, 1000, 1024}) {
      for (int rank = 0; rank < num_ranks; ++rank) {
        for (const auto& [op, shift, input] :
             WaysInPlace(num_ranks, rank, count)) {
          const auto gpu_plan = MakeShort(op, num_ranks, rank, count);
          ASSERT_TRUE(gpu_plan.ok()) << gpu_plan.status().message();
          EXPECT_TRUE(ShortIsRightInPlace(shift, *gpu_plan))
              << plan::OpName(op) << ", " << num_ranks << " ranks, " << count;
          for (uint64_t threads : {1, 7, 64})
            EXPECT_TRUE(ThreadsReadFirst(*gpu_plan, shift, input, threads))
                << plan::OpName(op) << ", " << num_ranks << " ranks, " << count;
        }
      }
    }
  }
}

// ShortIsRightInPlace must refuse an all-to-all whose gets have another order
// than its puts. It must also refuse buffers that overlap in other ways than
// WaysInPlace lists.
TEST(InPlaceTest, WrongShortMessages) {
  auto gpu_plan = MakeShort(Op::kAllToAll, 4, 1, 1000);
  ASSERT_TRUE(gpu_plan.ok());
  EXPECT_FALSE(ShortIsRightInPlace(16, *gpu_plan));
  std::swap(gpu_plan->receiving[0], gpu_plan->receiving[1]);
  EXPECT_FALSE(ShortIsRightInPlace(0, *gpu_plan));
  EXPECT_FALSE(ThreadsReadFirst(*gpu_plan, 0, 4000, 5));
  const auto reduce = MakeShort(Op::kAllReduce, 2, 0, 1000);
  ASSERT_TRUE(reduce.ok());
  EXPECT_FALSE(ShortIsRightInPlace(4, *reduce));
  EXPECT_FALSE(ThreadsReadFirst(*reduce, 4, 1000, 7));
}

}  // namespace
}  // namespace jax_cxl::cuda
