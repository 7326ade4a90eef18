// Sanitizers: none. It computes with values, and compares the results.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

#include "cc/testing/reference/plans.h"

// Tests the plans' properties that Verify proves, but without Verify. The test
// executes several calls in a row, and moves numbers instead of symbols. A
// random choice decides which rank does the next step.
namespace jax_cxl::plan {
namespace {

using Words = std::vector<uint32_t>;

constexpr uint32_t kUntouched = 0xdeadbeef;

// Stands for a reduction. It is neither commutative nor associative, so a wrong
// order gives a wrong result.
uint32_t Combine(uint32_t a, uint32_t b) { return a * 1000003 + b; }

struct Call {
  Request request;
  std::vector<Plan> plans;
  uint64_t start_round = 0;
  std::vector<Words> inputs, outputs;  // by rank
};

Call MakeCall(const Request& request, const Geometry& geometry,
              std::mt19937& random) {
  Call call;
  call.request = request;
  Result<std::vector<Plan>> plans = MakePlans(request, geometry);
  EXPECT_TRUE(plans.ok()) << plans.status().message();
  call.plans = *std::move(plans);
  for (int r = 0; r < request.num_ranks; ++r) {
    Words& input = call.inputs.emplace_back(InputBytes(request) / 4);
    for (uint32_t& word : input) word = random();
    call.outputs.emplace_back(OutputBytes(request) / 4, kUntouched);
  }
  return call;
}

Words ExpectedOutput(const Call& call, int rank) {
  const Request& request = call.request;
  const int n = request.num_ranks, root = request.root;
  const uint64_t count = request.count;
  Words output(OutputBytes(request) / 4, kUntouched);
  auto fold = [&](uint64_t at, int last, int first = 0) {
    for (uint64_t i = 0; i < count && last > first; ++i) {
      output[i] = call.inputs[first][at + i];
      for (int r = first + 1; r < last; ++r) {
        output[i] = Combine(output[i], call.inputs[r][at + i]);
      }
    }
  };
  auto copy = [&](int from_rank, uint64_t from, uint64_t to) {
    for (uint64_t i = 0; i < count; ++i) {
      output[to + i] = call.inputs[from_rank][from + i];
    }
  };
  for (int r = 0; r < n; ++r) {
    if (request.op == Op::kAllGather || MovesRows(request.op))
      copy(r, 0, r * count);
    if (request.op == Op::kAllToAll) copy(r, rank * count, r * count);
    if (request.op == Op::kGather && rank == root) copy(r, 0, r * count);
  }
  if (request.op == Op::kBroadcast) copy(root, 0, 0);
  if (request.op == Op::kScatter) copy(root, rank * count, 0);
  if (request.op == Op::kAllReduce) fold(0, n);
  if (request.op == Op::kReduce && rank == root) fold(0, n);
  if (request.op == Op::kReduceScatter) fold(rank * count, n);
  const bool reverse = request.reverse;
  if (request.op == Op::kScan)
    fold(0, reverse ? n : rank + 1, reverse ? rank : 0);
  if (request.op == Op::kExscan)
    fold(0, reverse ? n : rank, reverse ? rank + 1 : 0);
  if (request.op == Op::kPermute) {
    const int source = request.sources[rank];
    if (source >= 0) {
      copy(source, 0, 0);
    } else {
      std::fill(output.begin(), output.end(), 0);
    }
  }
  return output;
}

class Group {
 public:
  Group(std::vector<Call> calls, const Geometry& geometry)
      : calls_(std::move(calls)),
        geometry_(geometry),
        ranks_(calls_[0].request.num_ranks) {
    uint64_t rounds = 0;
    for (Call& call : calls_) {
      call.start_round = rounds;
      rounds += call.plans[0].rounds;
    }
    for (Rank& rank : ranks_) {
      rank.slots.assign(geometry.num_slots, Words(geometry.slot_bytes / 4, 7));
    }
  }

  // Executes steps in random order until no rank can continue.
  void Run(std::mt19937& random) {
    std::vector<int> order;
    for (size_t r = 0; r < ranks_.size(); ++r) order.push_back(r);
    for (bool moved = true; moved;) {
      moved = false;
      std::shuffle(order.begin(), order.end(), random);
      for (int rank : order) {
        // Sometimes a rank runs far ahead of the others.
        const int most = random() % 8 == 0 ? 1000 : 1 + random() % 3;
        for (int i = 0; i < most && TryStep(rank); ++i) moved = true;
        if (moved && random() % 2 == 0) break;
      }
    }
  }

  void ExpectRight() const {
    for (size_t r = 0; r < ranks_.size(); ++r) {
      EXPECT_EQ(ranks_[r].call, calls_.size()) << "rank " << r << " is stuck";
    }
    for (const Call& call : calls_) {
      for (size_t r = 0; r < ranks_.size(); ++r) {
        EXPECT_EQ(call.outputs[r], ExpectedOutput(call, r))
            << Describe(call.request, geometry_) << ", rank " << r;
      }
    }
  }

 private:
  struct Rank {
    size_t call = 0, step = 0;
    uint64_t published = 0, released = 0;
    std::vector<Words> slots;
  };

  uint32_t* Slot(int rank, uint64_t round, uint64_t at) {
    return ranks_[rank].slots[round % geometry_.num_slots].data() + at / 4;
  }

  bool CanWrite(int rank, uint64_t round) const {
    for (size_t peer = 0; peer < ranks_.size(); ++peer) {
      if (static_cast<int>(peer) == rank) continue;
      if (ranks_[peer].released + geometry_.num_slots <= round) return false;
    }
    return true;
  }

  bool CanRead(int rank, int first, int last, uint64_t round) const {
    for (int peer = first; peer < last; ++peer) {
      if (peer != rank && ranks_[peer].published <= round) return false;
    }
    return true;
  }

  void Reduce(int rank, const Call& call, const Step& step, uint32_t* to) {
    for (uint64_t i = 0; i < step.bytes / 4; ++i) {
      uint32_t sum = 0;
      for (int r = step.first; r < step.last; ++r) {
        const uint32_t word =
            r == rank ? call.inputs[rank][step.input_from / 4 + i]
                      : Slot(r, call.start_round + step.round, step.from)[i];
        sum = r == step.first ? word : Combine(sum, word);
      }
      to[i] = sum;
    }
  }

  // Executes the next step of a rank, unless the step has to wait.
  bool TryStep(int rank) {
    Rank& state = ranks_[rank];
    if (state.call == calls_.size()) return false;
    Call& call = calls_[state.call];
    const std::vector<Step>& steps = call.plans[rank].steps;
    if (state.step == steps.size()) {
      ++state.call;
      state.step = 0;
      return true;
    }
    const Step& step = steps[state.step];
    const uint64_t round = call.start_round + step.round;
    const uint64_t to_round = call.start_round + step.to_round;
    const uint32_t* input = call.inputs[rank].data();
    uint32_t* output = call.outputs[rank].data();
    auto copy = [&](const uint32_t* from, uint32_t* to) {
      std::copy_n(from, step.bytes / 4, to);
    };
    switch (step.kind) {
      case StepKind::kCopy:
        copy(input + step.from / 4, output + step.to / 4);
        break;
      case StepKind::kZero:
        std::fill_n(output + step.to / 4, step.bytes / 4, 0);
        break;
      case StepKind::kPut:
        if (!CanWrite(rank, round)) return false;
        copy(input + step.from / 4, Slot(rank, round, step.to));
        break;
      case StepKind::kPutOutput:
        if (!CanWrite(rank, round)) return false;
        copy(output + step.from / 4, Slot(rank, round, step.to));
        break;
      case StepKind::kPublish:
        state.published = round + 1;
        break;
      case StepKind::kGet:
        if (!CanRead(rank, step.peer, step.peer + 1, round)) return false;
        copy(Slot(step.peer, round, step.from), output + step.to / 4);
        break;
      case StepKind::kReduce:
        if (!CanRead(rank, step.first, step.last, round)) return false;
        Reduce(rank, call, step, output + step.to / 4);
        break;
      case StepKind::kReduceToSlot:
        if (!CanRead(rank, step.first, step.last, round)) return false;
        if (!CanWrite(rank, to_round)) return false;
        Reduce(rank, call, step, Slot(rank, to_round, step.to));
        break;
      case StepKind::kRelease:
        state.released = round + 1;
        break;
    }
    ++state.step;
    return true;
  }

  std::vector<Call> calls_;
  const Geometry geometry_;
  std::vector<Rank> ranks_;
};

TEST(InterleavingTest, EveryOrderOfCallsAndStepsGivesTheSame) {
  std::mt19937 random(1);
  for (int trial = 0; trial < 400; ++trial) {
    const int n = 1 + random() % 6;
    const Geometry geometry{.slot_bytes = n * kSlotAlignment,
                            .num_slots = 2 + static_cast<int>(random() % 4),
                            .all_read_bytes = random() % 2 * 400};
    std::vector<Call> calls;
    for (int i = 0; i < 8; ++i) {
      Request request = MakeRequest(static_cast<Op>(random() % kNumOps), n,
                                    random() % 1000, 4, random() % n);
      if (request.op == Op::kPermute) {
        request.sources = Sources(n, random() % 4);
      }
      request.reverse = random() % 2 == 0;
      calls.push_back(MakeCall(request, geometry, random));
    }
    Group group(std::move(calls), geometry);
    group.Run(random);
    group.ExpectRight();
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace jax_cxl::plan
