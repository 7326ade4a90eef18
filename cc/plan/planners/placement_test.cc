// Sanitizers: none. The tests make plans of many ranks, which is slow under a
// sanitizer.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "cc/plan/planners/make_plan.h"
#include "cc/testing/reference/plans.h"

// Tests that the ranks' plans use all pool devices equally at any time.
namespace jax_cxl::plan {
namespace {

// If the number of devices does not divide the number of rings, a round loads
// them unequally. For example, with eight rings on six devices, two devices
// hold two slots of a round.
TEST(PlacementTest, RanksTakeTurnsOnDevicesThatDoNotDivideThem) {
  constexpr int kDevices = 6;
  for (int n : {7, 8, 9, 10, 12}) {
    const Geometry geometry{
        .slot_bytes = 2048, .num_slots = 12, .num_devices = kDevices};
    const Request request = MakeRequest(Op::kAllGather, n, 40 << 10, 1);
    ExpectVerified(request, geometry, {.num_devices = kDevices});
    const auto plans = MakePlans(request, geometry);
    ASSERT_TRUE(plans.ok());
    // Count how often the n - 1 concurrent gets of all ranks use each device.
    for (size_t at = 0; at < 12 * static_cast<size_t>(n - 1); at += n - 1) {
      std::vector<int> gets(kDevices);
      for (const Plan& plan : *plans) {
        std::vector<Step> mine;
        std::copy_if(plan.steps.begin(), plan.steps.end(),
                     std::back_inserter(mine),
                     [](const Step& s) { return s.kind == StepKind::kGet; });
        for (int i = 0; i < n - 1; ++i) {
          const Step& get = mine[at + i];
          ++gets[(get.peer * kDevices / n + get.round) % kDevices];
        }
      }
      const auto [least, most] = std::minmax_element(gets.begin(), gets.end());
      EXPECT_LE(*most, 1.5 * *least) << n << " ranks, from get " << at;
    }
  }
}

// There are twice as many devices as ranks, so the first slots of the ranks'
// rings are two devices apart. If a chunk took two rounds, all inputs would lie
// on every other device.
TEST(PlacementTest, ReductionsUseAllDevices) {
  for (Op op : {Op::kAllReduce, Op::kReduce}) {
    for (int n : {3, 4, 6}) {
      const Geometry geometry{.slot_bytes = 4096,
                              .num_slots = 12,
                              .all_read_bytes = 0,
                              .num_devices = 2 * n};
      for (int slots = 2; slots < 12; ++slots) {
        Geometry smaller = geometry;
        smaller.num_slots = slots;
        ExpectVerified(MakeRequest(op, n, 100 << 10, 1), smaller);
      }
      const Traffic traffic = ExpectVerified(MakeRequest(op, n, 1 << 20, 1),
                                             geometry, {.num_devices = 2 * n});
      EXPECT_EQ(traffic.by_device.size(), static_cast<size_t>(2 * n));
      ExpectEvenDevices(traffic, 1.1,
                        std::string(OpName(op)) + " " + std::to_string(n));
    }
  }
}

// The readers of a broadcast use different devices at the same time, although
// they read one ring.
TEST(PlacementTest, BroadcastSpreadsItsReaders) {
  const Geometry geometry{.slot_bytes = 2048, .num_slots = 8, .num_devices = 4};
  auto first_gets = [&](int n, int rank) {
    Request request = MakeRequest(Op::kBroadcast, n, 32 << 10, 1);
    request.rank = rank;
    std::vector<uint64_t> rounds;
    const Result<Plan> plan = MakePlan(request, geometry);
    for (const Step& step : plan->steps) {
      if (step.kind == StepKind::kGet) rounds.push_back(step.round);
    }
    rounds.resize(5);
    return rounds;
  };
  // If there are few readers, each starts one round after the previous reader.
  EXPECT_EQ(first_gets(4, 1), (std::vector<uint64_t>{0, 1, 2, 3, 4}));
  EXPECT_EQ(first_gets(4, 3), (std::vector<uint64_t>{2, 0, 1, 2, 3}));
  // Many readers read windows of one round per device. Each starts at another
  // place of the window.
  EXPECT_EQ(first_gets(9, 1), (std::vector<uint64_t>{3, 0, 1, 2, 3}));
  EXPECT_EQ(first_gets(9, 5), (std::vector<uint64_t>{3, 2, 3, 0, 1}));
}

// If a round has 64 parts on six devices, four devices have one part more than
// the others: the first device of the round and the next three. If three
// readers are in rounds 0, 2 and 4, each device has an extra part in two of
// these rounds.
TEST(PlacementTest, ReadersOfRoundsOnAllDevicesStartApart) {
  const Geometry geometry{.slot_bytes = 2048,
                          .num_slots = 12,
                          .num_devices = 6,
                          .device_parts = 64};
  auto first_awaited = [&](int n, uint64_t bytes, int rank) -> int {
    Request request = MakeRequest(Op::kBroadcast, n, bytes, 1);
    request.rank = rank;
    const Result<Plan> plan = MakePlan(request, geometry);
    const Step& step = plan->steps.front();
    return step.kind == StepKind::kGet && step.bytes == 0
               ? static_cast<int>(step.round)
               : 0;
  };
  for (uint64_t bytes : {128 << 10, 16 << 10}) {
    for (int n : {6, 9}) {
      for (int rank = 1; rank < n; ++rank) {
        // Readers start apart only if there are more of them than devices, and
        // if the call is long.
        const bool apart = n > 7 && bytes > (32 << 10);
        EXPECT_EQ(first_awaited(n, bytes, rank), apart ? (rank - 1) % 3 * 2 : 0)
            << n << " ranks, " << bytes << " bytes, rank " << rank;
      }
    }
  }
}

// In each turn, either the even or the odd ranks put the inputs of two chunks,
// and the others put none.
TEST(PlacementTest, RanksOfAnAllReduceTakeTurnsAtPuttingInputs) {
  const Geometry geometry{.slot_bytes = 4096,
                          .num_slots = 12,
                          .all_read_bytes = 0,
                          .num_devices = 6,
                          .device_parts = 64};
  auto inputs_before_each_result = [&](int rank) {
    Request request = MakeRequest(Op::kAllReduce, 8, 32 << 10, 1);
    request.rank = rank;
    const Result<Plan> plan = MakePlan(request, geometry);
    std::vector<uint64_t> chunks;
    std::vector<uint64_t> rounds;  // in which the rank puts inputs
    for (const Step& step : plan->steps) {
      if (step.kind == StepKind::kPut &&
          (rounds.empty() || rounds.back() != step.round))
        rounds.push_back(step.round);
      if (step.kind == StepKind::kPutOutput) chunks.push_back(rounds.size());
    }
    return chunks;
  };
  EXPECT_EQ(inputs_before_each_result(0),
            (std::vector<uint64_t>{2, 4, 4, 6, 6, 8, 8, 8}));
  EXPECT_EQ(inputs_before_each_result(1),
            (std::vector<uint64_t>{2, 3, 5, 5, 7, 7, 8, 8}));
}

// The ring has 8 slots, so the root puts round 32 only after all readers have
// released round 24. Readers that wait for round 32 therefore start together.
TEST(PlacementTest, ReadersOfABroadcastStartTogetherAgain) {
  const Geometry geometry{.slot_bytes = 2048, .num_slots = 8, .num_devices = 4};
  Request request = MakeRequest(Op::kBroadcast, 9, 160 << 10, 1);
  ExpectVerified(request, geometry, {.num_devices = 4});
  request.rank = 5;
  std::vector<uint64_t> awaited;
  const Result<Plan> plan = MakePlan(request, geometry);
  for (const Step& step : plan->steps) {
    const bool awaits = step.kind == StepKind::kGet && step.bytes == 0;
    if (awaits) awaited.push_back(step.round);
  }
  ASSERT_EQ(awaited.size(), 20u);
  EXPECT_EQ(awaited[6], 27u);
  EXPECT_EQ(awaited[7], 32u);
  EXPECT_EQ(awaited[8], 35u);
}

}  // namespace
}  // namespace jax_cxl::plan
