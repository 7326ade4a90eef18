#include "cc/engine/cpu/executor.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "cc/testing/reference/plans.h"
#include "cc/testing/verify/expected_output.h"

namespace jax_cxl::cpu {
namespace {

using plan::Op;

constexpr uint8_t kUntouched = 0xa5;
constexpr uint64_t kNeverPastCaches = ~uint64_t{0};

// Small slots, so that a call uses each slot several times.
constexpr plan::Geometry kSmallSlots = {
    .slot_bytes = 1024, .num_slots = 2, .all_read_bytes = 512};

std::byte* Bytes(std::vector<uint8_t>& bytes) {
  return reinterpret_cast<std::byte*>(bytes.data());
}

// The members of a group, with rings in plain memory, and the calls that they
// execute. All elements are bytes.
class Members {
 public:
  Members(int size, const plan::Geometry& geometry)
      : geometry_(geometry), memory_(size) {
    std::vector<RingView> views(size, RingView{.doorbells = doorbells_});
    for (int rank = 0; rank < size; ++rank) {
      Memory& memory = memory_[rank];
      memory.slots.resize(geometry.num_slots * geometry.slot_bytes, kUntouched);
      views[rank].published = &memory.published;
      views[rank].released = &memory.released;
      for (int slot = 0; slot < geometry.num_slots; ++slot)
        views[rank].slots[slot] =
            Bytes(memory.slots) + slot * geometry.slot_bytes;
    }
    for (int rank = 0; rank < size; ++rank)
      rings_.push_back(
          std::make_unique<Rings>(views, rank, geometry.num_slots));
  }

  struct Call {
    plan::Request request;
    std::vector<plan::Plan> plans;
    // By rank:
    std::vector<std::vector<uint8_t>> inputs, outputs;
    std::vector<std::unique_ptr<Execution>> executions;
    std::vector<Traffic> traffic;
  };

  // Begins a call on all members, after all earlier calls.
  Call Begin(const plan::Request& request,
             uint64_t past_caches_bytes = kNeverPastCaches) {
    Call call;
    call.request = request;
    auto plans = plan::MakePlans(request, geometry_);
    EXPECT_TRUE(plans.ok()) << plans.status().message();
    call.plans = *std::move(plans);
    const int size = request.num_ranks;
    call.traffic.resize(size);
    for (int rank = 0; rank < size; ++rank) {
      auto& input = call.inputs.emplace_back(plan::InputBytes(request));
      for (uint8_t& byte : input) byte = static_cast<uint8_t>(random_());
      call.outputs.emplace_back(plan::OutputBytes(request), kUntouched);
    }
    for (int rank = 0; rank < size; ++rank)
      call.executions.push_back(std::make_unique<Execution>(
          std::make_shared<const plan::Plan>(call.plans[rank]),
          rings_[rank].get(), rounds_, DType::kUint8, ReduceOp::kSum,
          Bytes(call.inputs[rank]), Bytes(call.outputs[rank]),
          past_caches_bytes));
    rounds_ += call.plans[0].rounds;
    return call;
  }

  static bool Advance(Call& call, int rank) {
    const Result<bool> done =
        call.executions[rank]->Advance(&call.traffic[rank]);
    EXPECT_TRUE(done.ok()) << done.status().message();
    return done.ok() && *done;
  }

  // Advances the members in random order until all are done. Returns false if
  // they get stuck.
  bool Finish(Call& call) {
    std::vector<int> left(call.executions.size());
    for (size_t rank = 0; rank < left.size(); ++rank)
      left[rank] = static_cast<int>(rank);
    for (;;) {
      std::shuffle(left.begin(), left.end(), random_);
      const size_t before = StepsDone(call);
      std::erase_if(left, [&](int rank) { return Advance(call, rank); });
      if (left.empty()) return true;
      if (StepsDone(call) == before) return false;
    }
  }

  static void ExpectRight(const Call& call) {
    for (int rank = 0; rank < call.request.num_ranks; ++rank) {
      std::vector<uint8_t> expected(call.outputs[rank].size(), kUntouched);
      const plan::Extents extents = plan::ExpectedOutput(call.request, rank);
      for (const plan::Extent& extent : extents.extents())
        for (uint64_t at = extent.begin; at < extent.end; ++at) {
          const plan::Value value = extent.value.Plus(at - extent.begin);
          expected[at] = 0;
          for (int r = value.first; !value.zero && r < value.last; ++r)
            expected[at] += call.inputs[r][value.offset];
        }
      EXPECT_EQ(call.outputs[rank], expected) << "rank " << rank;
    }
  }

  const std::vector<uint8_t>& slots(int rank) { return memory_[rank].slots; }

 private:
  struct Memory {
    uint64_t published = 0;
    uint64_t released = 0;
    std::vector<uint8_t> slots;
  };

  static size_t StepsDone(const Call& call) {
    size_t steps = 0;
    for (const auto& execution : call.executions)
      steps += execution->steps_done();
    return steps;
  }

  const pool::Doorbells doorbells_{
      pool::Coherence(pool::CoherenceMode::kCoherent), /*epoch=*/7};
  plan::Geometry geometry_;
  std::vector<Memory> memory_;
  std::vector<std::unique_ptr<Rings>> rings_;
  uint64_t rounds_ = 0;
  std::mt19937 random_{1};
};

class ExecutorOps : public testing::TestWithParam<Op> {};

TEST_P(ExecutorOps, DoesWhatIsAskedForCallAfterCall) {
  for (int ranks : {2, 3, 5}) {
    Members members(ranks, kSmallSlots);
    for (uint64_t count : {1, 200, 3000}) {
      SCOPED_TRACE(testing::Message() << ranks << " ranks, " << count);
      const plan::Request request =
          plan::MakeRequest(GetParam(), ranks, count, /*element_bytes=*/1,
                            /*root=*/ranks - 1);
      // With 1, every copy to an output bypasses the caches.
      for (uint64_t past_caches_bytes : {kNeverPastCaches, uint64_t{1}}) {
        Members::Call call = members.Begin(request, past_caches_bytes);
        ASSERT_TRUE(members.Finish(call));
        Members::ExpectRight(call);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(AllOps, ExecutorOps, testing::ValuesIn(plan::AllOps()),
                         [](const auto& info) {
                           return std::string(plan::OpName(info.param));
                         });

TEST(ExecutorTest, SaysWhomItWaitsFor) {
  Members members(3, kSmallSlots);
  Members::Call call = members.Begin(
      plan::MakeRequest(Op::kAllGather, 3, 100, /*element_bytes=*/1));
  EXPECT_FALSE(Members::Advance(call, 0));
  const int first = call.executions[0]->waiting_for();
  EXPECT_TRUE(first == 1 || first == 2) << first;
  const size_t steps = call.executions[0]->steps_done();
  EXPECT_GT(steps, 0u);
  // The peers have done nothing since, so Advance returns the same.
  EXPECT_FALSE(Members::Advance(call, 0));
  EXPECT_EQ(call.executions[0]->steps_done(), steps);
  EXPECT_EQ(call.executions[0]->waiting_for(), first);
  // Once that member has published, only the other one is missing.
  EXPECT_FALSE(Members::Advance(call, first));
  EXPECT_FALSE(Members::Advance(call, 0));
  EXPECT_GT(call.executions[0]->steps_done(), steps);
  EXPECT_EQ(call.executions[0]->waiting_for(), 3 - first);
  ASSERT_TRUE(members.Finish(call));
  EXPECT_EQ(call.executions[0]->waiting_for(), -1);
  Members::ExpectRight(call);
}

TEST(ExecutorTest, WritesNoSlotThatAPeerMayStillRead) {
  Members members(2, kSmallSlots);
  Members::Call call = members.Begin(
      plan::MakeRequest(Op::kBroadcast, 2, 8000, /*element_bytes=*/1));
  ASSERT_GT(call.plans[0].rounds, 4u);
  // The root fills its two slots, and then has to wait for the other rank.
  EXPECT_FALSE(Members::Advance(call, 0));
  EXPECT_EQ(call.executions[0]->waiting_for(), 1);
  EXPECT_LE(call.traffic[0].bytes_published,
            kSmallSlots.num_slots * kSmallSlots.slot_bytes);
  const std::vector<uint8_t> slots = members.slots(0);
  EXPECT_NE(slots, std::vector<uint8_t>(slots.size(), kUntouched));
  EXPECT_FALSE(Members::Advance(call, 0));
  EXPECT_EQ(members.slots(0), slots);
  // The other rank reads and releases the two slots. So the root uses them
  // again.
  EXPECT_FALSE(Members::Advance(call, 1));
  EXPECT_EQ(call.executions[1]->waiting_for(), 0);
  EXPECT_FALSE(Members::Advance(call, 0));
  EXPECT_NE(members.slots(0), slots);
  ASSERT_TRUE(members.Finish(call));
  Members::ExpectRight(call);
}

// The next call continues the count of rounds. So the releases of a call also
// show the next call which slots are free.
TEST(ExecutorTest, ACallWaitsForTheReadersOfTheOneBefore) {
  Members members(2, kSmallSlots);
  const plan::Request request =
      plan::MakeRequest(Op::kBroadcast, 2, 256, /*element_bytes=*/1);
  Members::Call first = members.Begin(request);
  Members::Call second = members.Begin(request);
  Members::Call third = members.Begin(request);
  ASSERT_EQ(first.plans[0].rounds + second.plans[0].rounds, 2u);
  EXPECT_TRUE(Members::Advance(first, 0));
  EXPECT_TRUE(Members::Advance(second, 0));
  EXPECT_FALSE(Members::Advance(third, 0));
  EXPECT_EQ(third.executions[0]->waiting_for(), 1);
  EXPECT_TRUE(Members::Advance(first, 1));
  EXPECT_TRUE(Members::Advance(third, 0));
  EXPECT_TRUE(Members::Advance(second, 1));
  EXPECT_TRUE(Members::Advance(third, 1));
  for (const Members::Call* call : {&first, &second, &third})
    Members::ExpectRight(*call);
}

TEST(ExecutorTest, CountsWhatItMoves) {
  Members members(3, kSmallSlots);
  Members::Call call = members.Begin(
      plan::MakeRequest(Op::kAllGather, 3, 1000, /*element_bytes=*/1));
  ASSERT_TRUE(members.Finish(call));
  for (const Traffic& traffic : call.traffic) {
    EXPECT_EQ(traffic.bytes_published, 1000u);
    EXPECT_EQ(traffic.bytes_retrieved, 2000u);
  }
}

}  // namespace
}  // namespace jax_cxl::cpu
