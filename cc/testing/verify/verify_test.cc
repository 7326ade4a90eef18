// Sanitizers: none. It computes with values, and compares the results.

#include "cc/testing/verify/verify.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "cc/testing/reference/plans.h"
#include "cc/testing/verify/debug_string.h"
#include "cc/testing/verify/extents.h"

namespace jax_cxl::plan {
namespace {

using Plans = std::vector<Plan>;

constexpr Geometry kTwoSlots{
    .slot_bytes = 512, .num_slots = 2, .all_read_bytes = 0};

Plans GoodPlans(const Request& request, const Geometry& geometry = kTwoSlots) {
  Result<Plans> plans = MakePlans(request, geometry);
  EXPECT_TRUE(plans.ok()) << plans.status().message();
  EXPECT_TRUE(Verify(request, geometry, *plans).ok());
  return *std::move(plans);
}

// Returns the verifier's message about `plans`, or "" if they are right.
std::string Complaint(const Request& request, const Plans& plans,
                      const Geometry& geometry = kTwoSlots) {
  const Result<Traffic> traffic = Verify(request, geometry, plans);
  if (traffic.ok()) return "";
  EXPECT_EQ(traffic.status().code(), Code::kInternal);
  return traffic.status().message();
}

#define EXPECT_COMPLAINT(complaint, text)                                      \
  do {                                                                         \
    const std::string actual = complaint;                                      \
    EXPECT_NE(actual.find(text), std::string::npos) << "\"" << actual << "\""; \
  } while (false)

// Returns the index of the `nth` step of a kind.
size_t Find(const Plan& plan, StepKind kind, int nth = 0) {
  for (size_t i = 0; i < plan.steps.size(); ++i) {
    if (plan.steps[i].kind == kind && nth-- == 0) return i;
  }
  ADD_FAILURE() << "no " << StepKindName(kind) << " in\n" << DebugString(plan);
  return 0;
}

void Erase(Plan& plan, size_t index) {
  plan.steps.erase(plan.steps.begin() + index);
}

void Move(Plan& plan, size_t from, size_t to) {
  const Step step = plan.steps[from];
  Erase(plan, from);
  plan.steps.insert(plan.steps.begin() + to, step);
}

bool MovesBytes(const Step& step) {
  return step.kind != StepKind::kPublish && step.kind != StepKind::kRelease;
}

// Changes one step of one rank's plan in a wrong way, for every step of every
// rank. Verify must refuse each of the changed plans.
class Mutations : public testing::TestWithParam<Op> {
 protected:
  Mutations() : request_(MakeRequest(GetParam(), 4, 300, 4, 1)) {
    if (GetParam() == Op::kPermute) request_.sources = {1, 0, -1, 3};
  }

  // Applies `mutate` to each step, in a new copy of the plans. If `mutate`
  // returns true, it has changed the plan, and Verify must refuse it.
  void ExpectCaught(const std::string& name,
                    const std::function<bool(Plan&, size_t index)>& mutate) {
    for (int slots : {2, 4}) {
      Geometry geometry = kTwoSlots;
      geometry.num_slots = slots;
      const Plans good = GoodPlans(request_, geometry);
      for (size_t rank = 0; rank < good.size(); ++rank) {
        for (size_t i = 0; i < good[rank].steps.size(); ++i) {
          Plans plans = good;
          if (!mutate(plans[rank], i)) continue;
          EXPECT_NE(Complaint(request_, plans, geometry), "")
              << name << ", rank " << rank << ", step " << i << " of\n"
              << DebugString(good[rank]);
        }
      }
    }
  }

  Request request_;
};

TEST_P(Mutations, MissingStep) {
  ExpectCaught("drop", [](Plan& plan, size_t i) {
    // A missing publish or release is not wrong if a later step of the same
    // kind covers it, because the counters only grow.
    auto same_kind = [&](const Step& step) {
      return step.kind == plan.steps[i].kind;
    };
    if (!MovesBytes(plan.steps[i]) &&
        std::any_of(plan.steps.begin() + i + 1, plan.steps.end(), same_kind)) {
      return false;
    }
    Erase(plan, i);
    return true;
  });
}

TEST_P(Mutations, RepeatedStep) {
  ExpectCaught("repeat", [](Plan& plan, size_t i) {
    if (MovesBytes(plan.steps[i]) && plan.steps[i].bytes == 0) return false;
    plan.steps.insert(plan.steps.begin() + i, Step(plan.steps[i]));
    return true;
  });
}

TEST_P(Mutations, WrongSource) {
  for (int64_t shift : {-128, -4, 4, 128}) {
    ExpectCaught("from", [shift](Plan& plan, size_t i) {
      Step& step = plan.steps[i];
      if (!MovesBytes(step) || step.bytes == 0 ||
          step.kind == StepKind::kZero) {
        return false;
      }
      step.from += shift;
      return true;
    });
    if (GetParam() == Op::kExscan) continue;  // does not reduce its own input
    ExpectCaught("input_from", [shift](Plan& plan, size_t i) {
      Step& step = plan.steps[i];
      if (step.kind != StepKind::kReduce &&
          step.kind != StepKind::kReduceToSlot) {
        return false;
      }
      step.input_from += shift;
      return true;
    });
  }
}

TEST_P(Mutations, WrongDestination) {
  for (int64_t shift : {-128, -4, 4, 128}) {
    ExpectCaught("to", [shift](Plan& plan, size_t i) {
      Step& step = plan.steps[i];
      if (!MovesBytes(step) || step.bytes == 0) return false;
      step.to += shift;
      return true;
    });
  }
}

TEST_P(Mutations, WrongSize) {
  for (int64_t change : {-4, 4}) {
    ExpectCaught("bytes", [change](Plan& plan, size_t i) {
      Step& step = plan.steps[i];
      if (!MovesBytes(step) || step.bytes == 0) return false;
      // To put more bytes than peers read is a waste, but not wrong.
      if (change > 0 &&
          (step.kind == StepKind::kPut || step.kind == StepKind::kPutOutput ||
           step.kind == StepKind::kReduceToSlot)) {
        return false;
      }
      step.bytes += change;
      return true;
    });
  }
}

TEST_P(Mutations, WrongRound) {
  for (int64_t change : {-1, 1}) {
    ExpectCaught("round", [change](Plan& plan, size_t i) {
      Step& step = plan.steps[i];
      if (!MovesBytes(step) || step.kind == StepKind::kCopy ||
          step.kind == StepKind::kZero) {
        return false;
      }
      step.round += change;
      return true;
    });
    ExpectCaught("to_round", [change](Plan& plan, size_t i) {
      Step& step = plan.steps[i];
      if (step.kind != StepKind::kReduceToSlot) return false;
      step.to_round += change;
      return true;
    });
  }
}

TEST_P(Mutations, WrongRanks) {
  for (int change : {-1, 1}) {
    ExpectCaught("peer", [change](Plan& plan, size_t i) {
      Step& step = plan.steps[i];
      if (step.kind != StepKind::kGet) return false;
      step.peer += change;
      return true;
    });
    for (int32_t Step::* end : {&Step::first, &Step::last}) {
      ExpectCaught("ranks", [change, end](Plan& plan, size_t i) {
        Step& step = plan.steps[i];
        if (step.kind != StepKind::kReduce &&
            step.kind != StepKind::kReduceToSlot) {
          return false;
        }
        step.*end += change;
        return true;
      });
    }
  }
}

// Moves a publish ahead of the step that writes the slot, or a release ahead of
// the step that reads it.
TEST_P(Mutations, EarlyDoorbell) {
  ExpectCaught("early", [](Plan& plan, size_t i) {
    if (i == 0 || MovesBytes(plan.steps[i])) return false;
    const bool publish = plan.steps[i].kind == StepKind::kPublish;
    const Step& before = plan.steps[i - 1];
    const bool writes = before.kind == StepKind::kPut ||
                        before.kind == StepKind::kPutOutput ||
                        before.kind == StepKind::kReduceToSlot;
    const bool reads = before.kind == StepKind::kGet ||
                       before.kind == StepKind::kReduce ||
                       before.kind == StepKind::kReduceToSlot;
    if (before.bytes == 0 || !(publish ? writes : reads)) return false;
    Move(plan, i, i - 1);
    return true;
  });
}

INSTANTIATE_TEST_SUITE_P(Ops, Mutations, testing::ValuesIn(AllOps()),
                         [](const auto& info) {
                           return std::string(OpName(info.param));
                         });

TEST(VerifyTest, ReportsDeadlock) {
  // The changed plans do all puts before all gets. This works only with a slot
  // for each of the three rounds.
  const Request request = MakeRequest(Op::kAllGather, 3, 1500, 1);
  Plans plans = GoodPlans(request);
  ASSERT_EQ(plans[0].rounds, 3u);
  for (Plan& plan : plans) {
    std::stable_partition(
        plan.steps.begin(), plan.steps.end(), [](const Step& step) {
          return step.kind != StepKind::kGet && step.kind != StepKind::kRelease;
        });
  }
  EXPECT_COMPLAINT(Complaint(request, plans), "deadlock: waits for rank 1");
  Geometry three_slots = kTwoSlots;
  three_slots.num_slots = 3;
  EXPECT_EQ(Complaint(request, plans, three_slots), "");
}

TEST(VerifyTest, ReportsSwappedPeers) {
  const Request request = MakeRequest(Op::kAllGather, 3, 100);
  Plans plans = GoodPlans(request);
  const size_t first = Find(plans[0], StepKind::kGet, 0);
  const size_t second = Find(plans[0], StepKind::kGet, 1);
  std::swap(plans[0].steps[first].peer, plans[0].steps[second].peer);
  EXPECT_COMPLAINT(Complaint(request, plans),
                   "rank 0 outputs [0, 400): ranks "
                   "[0, 1) from 0; [400, 800): "
                   "ranks [2, 3) from 0;");
}

TEST(VerifyTest, ReportsReductionOfPartialResults) {
  // Rank 1 puts the sum of inputs 0 and 1 into its slot, and rank 2 adds its
  // own input. This is right in exact arithmetic, but with rounding the result
  // may differ.
  const Request request = MakeRequest(Op::kScan, 3, 10);
  Plans plans = GoodPlans(request);
  Plan& one = plans[1];
  one.steps.clear();
  Plans good = GoodPlans(request);
  one.steps.push_back(good[1].steps[Find(good[1], StepKind::kReduce)]);
  one.steps.push_back(
      {.kind = StepKind::kPutOutput, .round = 0, .to = 0, .bytes = 40});
  one.steps.push_back({.kind = StepKind::kPublish, .round = 0});
  one.steps.push_back({.kind = StepKind::kRelease, .round = 0});
  plans[2].steps[Find(plans[2], StepKind::kReduce)].first = 1;
  EXPECT_COMPLAINT(Complaint(request, plans), "operand 1 is not the input");
}

TEST(VerifyTest, ReportsDataInTheWrongOrder) {
  // Rank 2 puts the input of rank 1 in place of its own. So the others would
  // fold the inputs of ranks 0, 1 and 1.
  const Request request = MakeRequest(Op::kAllReduce, 3, 10);
  Geometry all_read = kTwoSlots;
  all_read.all_read_bytes = 1 << 20;
  Plans plans = GoodPlans(request, all_read);
  Plan& two = plans[2];
  two.steps = {{.kind = StepKind::kGet, .peer = 1, .bytes = 40},
               {.kind = StepKind::kPutOutput, .bytes = 40},
               {.kind = StepKind::kPublish},
               {.kind = StepKind::kRelease}};
  EXPECT_COMPLAINT(Complaint(request, plans, all_read),
                   "operand 2 is not the input");
}

TEST(VerifyTest, ReportsWriteToUndefinedOutput) {
  const Request request = MakeRequest(Op::kGather, 3, 10);
  Plans plans = GoodPlans(request);
  plans[1].steps.push_back({.kind = StepKind::kZero, .bytes = 4});
  EXPECT_COMPLAINT(Complaint(request, plans),
                   "rank 1 outputs [0, 4): zero; instead of nothing");
}

TEST(VerifyTest, ReportsDifferentRounds) {
  const Request request = MakeRequest(Op::kBroadcast, 3, 10);
  Plans plans = GoodPlans(request);
  plans[2].rounds = 2;
  EXPECT_COMPLAINT(Complaint(request, plans), "rank 2 has 2 rounds");
  plans.pop_back();
  EXPECT_COMPLAINT(Complaint(request, plans), "2 plans for 3 ranks");
}

TEST(VerifyTest, ReportsMissingRelease) {
  const Request request = MakeRequest(Op::kBroadcast, 3, 10);
  Plans plans = GoodPlans(request);
  Erase(plans[2], Find(plans[2], StepKind::kRelease));
  EXPECT_COMPLAINT(Complaint(request, plans),
                   "rank 2 ends without releasing all rounds");
}

TEST(VerifyTest, ReportsReadAfterRelease) {
  const Request request = MakeRequest(Op::kBroadcast, 3, 10);
  Plans plans = GoodPlans(request);
  Move(plans[2], Find(plans[2], StepKind::kRelease), 0);
  EXPECT_COMPLAINT(Complaint(request, plans),
                   "reads a round that it has released");
}

TEST(VerifyTest, ReportsWriteAfterPublish) {
  const Request request = MakeRequest(Op::kBroadcast, 3, 10);
  Plans plans = GoodPlans(request);
  const size_t publish = Find(plans[0], StepKind::kPublish);
  Move(plans[0], publish, Find(plans[0], StepKind::kPut));
  EXPECT_COMPLAINT(Complaint(request, plans),
                   "writes a slot that was published");
}

TEST(VerifyTest, ReportsLeftovers) {
  // The root publishes a slot into which it has put nothing. Its readers would
  // find data of an older round.
  const Request request = MakeRequest(Op::kBroadcast, 3, 10);
  Plans plans = GoodPlans(request);
  Erase(plans[0], Find(plans[0], StepKind::kPut));
  EXPECT_COMPLAINT(Complaint(request, plans),
                   "rank 0 put nothing in this round");
}

TEST(VerifyTest, ReportsHalfElementsAndSharedLines) {
  const Request request = MakeRequest(Op::kAllToAll, 3, 10);
  Plans plans = GoodPlans(request);
  plans[0].steps[Find(plans[0], StepKind::kPut)].bytes = 39;
  EXPECT_COMPLAINT(Complaint(request, plans), "cuts an element in two");

  plans = GoodPlans(request);
  for (Plan& plan : plans) {
    for (Step& step : plan.steps) {
      if (step.kind == StepKind::kPut && step.to == 128) step.to = 64;
      if (step.kind == StepKind::kGet && step.from == 128) step.from = 64;
    }
  }
  EXPECT_COMPLAINT(Complaint(request, plans), "off the boundary of 128");
}

TEST(VerifyTest, ReportsOffsetsThatOverflow) {
  const Request request = MakeRequest(Op::kAllGather, 2, 100);
  Plans plans = GoodPlans(request);
  plans[1].steps[Find(plans[1], StepKind::kPut)].from = ~uint64_t{0} - 3;
  EXPECT_COMPLAINT(Complaint(request, plans), "leaves the buffer");
}

TEST(VerifyTest, ReportsBarrierThatDoesNotWait) {
  const Request request = MakeRequest(Op::kBarrier, 3, 0);
  Plans plans = GoodPlans(request);
  Erase(plans[1], Find(plans[1], StepKind::kGet));
  EXPECT_COMPLAINT(Complaint(request, plans),
                   "rank 1 does not wait for rank 2");
}

TEST(VerifyTest, CountsBytesByRankAndDevice) {
  // Slot 0 of rank 0 lies on device 0, and slot 0 of rank 1 on device 1.
  const Request request = MakeRequest(Op::kAllGather, 2, 700, 1);
  const Plans plans = GoodPlans(request);
  ASSERT_EQ(plans[0].rounds, 2u);
  const Result<Traffic> traffic =
      Verify(request, kTwoSlots, plans, {.start_round = 3, .num_devices = 2});
  ASSERT_TRUE(traffic.ok());
  EXPECT_EQ(traffic->by_rank[0], (PoolBytes{700, 700}));
  EXPECT_EQ(traffic->by_rank[1], (PoolBytes{700, 700}));
  // Each rank has a chunk of 384 bytes on one device and a chunk of 316 bytes
  // on the other.
  EXPECT_EQ(traffic->by_device[0], (PoolBytes{700, 700}));
  EXPECT_EQ(traffic->by_device[1], (PoolBytes{700, 700}));

  const Result<Traffic> broadcast =
      Verify(MakeRequest(Op::kBroadcast, 2, 700, 1), kTwoSlots,
             GoodPlans(MakeRequest(Op::kBroadcast, 2, 700, 1)),
             {.start_round = 3, .num_devices = 2});
  ASSERT_TRUE(broadcast.ok());
  // The call starts in round 3, which uses slot 1.
  EXPECT_EQ(broadcast->by_device[1], (PoolBytes{384, 384}));
  EXPECT_EQ(broadcast->by_device[0], (PoolBytes{316, 316}));
}

TEST(ExtentsTest, MergesWhatContinues) {
  Extents extents;
  EXPECT_TRUE(extents.Write(10, 20, Value::Input(1, 0)));
  EXPECT_TRUE(extents.Write(30, 40, Value::Input(1, 20)));
  EXPECT_EQ(extents.extents().size(), 2u);
  EXPECT_TRUE(extents.Write(20, 30, Value::Input(1, 10)));
  ASSERT_EQ(extents.extents().size(), 1u);
  EXPECT_EQ(extents.extents()[0], (Extent{10, 40, Value::Input(1, 0)}));
  EXPECT_TRUE(extents.Write(40, 50, Value::Input(2, 30)));
  EXPECT_TRUE(extents.Write(0, 10, Value::Zero()));
  EXPECT_EQ(extents.extents().size(), 3u);
}

TEST(ExtentsTest, RefusesToOverwrite) {
  Extents extents;
  EXPECT_TRUE(extents.Write(10, 20, Value::Zero()));
  EXPECT_FALSE(extents.Write(0, 11, Value::Zero()));
  EXPECT_FALSE(extents.Write(19, 25, Value::Zero()));
  EXPECT_FALSE(extents.Write(12, 13, Value::Zero()));
  EXPECT_FALSE(extents.Write(0, 40, Value::Zero()));
  EXPECT_TRUE(extents.Write(15, 15, Value::Zero()));
  ASSERT_EQ(extents.extents().size(), 1u);
  EXPECT_EQ(extents.extents()[0], (Extent{10, 20, Value::Zero()}));
}

TEST(ExtentsTest, ReadsFromTheMiddle) {
  Extents extents;
  extents.Write(10, 20, Value::Fold(0, 3, 100));
  EXPECT_EQ(extents.At(12, 15), (Extent{12, 15, Value::Fold(0, 3, 102)}));
  EXPECT_EQ(extents.At(12, 50), (Extent{12, 20, Value::Fold(0, 3, 102)}));
  EXPECT_FALSE(extents.At(9, 12));
  EXPECT_FALSE(extents.At(20, 22));
}

}  // namespace
}  // namespace jax_cxl::plan
