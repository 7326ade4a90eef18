#ifndef JAX_CXL_TESTING_REFERENCE_GPU_PLAN_MACHINE_H_
#define JAX_CXL_TESTING_REFERENCE_GPU_PLAN_MACHINE_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "cc/engine/gpu_plan/gpu_plan.h"
#include "cc/testing/reference/plans.h"
#include "cc/testing/verify/expected_output.h"

// Executes the GPU plans of all ranks on the CPU, like the kernel, one step at
// a time. A random choice picks the rank, block and direction of the next step.
namespace jax_cxl::cuda {

using Bytes = std::vector<uint8_t>;

inline constexpr uint8_t kUntouched = 0xa5;
inline constexpr uint64_t kVectorBytes = 16;  // size of one store of a thread

// A sum whose result depends on the order of its terms.
inline uint8_t Combine(uint8_t a, uint8_t b) {
  return static_cast<uint8_t>(a * 167 + b);
}

struct Call {
  plan::Request request;
  std::vector<GpuPlan> gpu_plans;  // by rank, as are inputs and outputs
  std::vector<Bytes> inputs;
  std::vector<Bytes> outputs;
  uint64_t base_round = 0;
};

inline Call MakeCall(const plan::Request& request,
                     const plan::Geometry& geometry, const Stripes& stripes,
                     std::mt19937& random) {
  Call call;
  call.request = request;
  Result<std::vector<plan::Plan>> plans = plan::MakePlans(request, geometry);
  EXPECT_TRUE(plans.ok()) << plans.status().message();
  for (int rank = 0; rank < request.num_ranks; ++rank) {
    Result<GpuPlan> gpu_plan = MakeGpuPlan((*plans)[rank], rank, stripes);
    EXPECT_TRUE(gpu_plan.ok())
        << Describe(request, geometry) << ": " << gpu_plan.status().message();
    call.gpu_plans.push_back(*std::move(gpu_plan));
    Bytes& input = call.inputs.emplace_back(InputBytes(request));
    for (uint8_t& byte : input) byte = static_cast<uint8_t>(random());
    call.outputs.emplace_back(OutputBytes(request), kUntouched);
  }
  return call;
}

inline Bytes ExpectedOutput(const Call& call, int rank) {
  Bytes output(OutputBytes(call.request), kUntouched);
  const plan::Extents expected = plan::ExpectedOutput(call.request, rank);
  for (const plan::Extent& extent : expected.extents()) {
    for (uint64_t at = extent.begin; at < extent.end; ++at) {
      const plan::Value value = extent.value.Plus(at - extent.begin);
      output[at] = value.zero ? 0 : call.inputs[value.first][value.offset];
      for (int r = value.first + 1; r < value.last; ++r)
        output[at] = Combine(output[at], call.inputs[r][value.offset]);
    }
  }
  return output;
}

class Machine {
 public:
  Machine(std::vector<Call> calls, const plan::Geometry& geometry,
          const Stripes& stripes)
      : calls_(std::move(calls)),
        num_slots_(geometry.num_slots),
        stripes_(stripes),
        ranks_(calls_[0].request.num_ranks) {
    uint64_t rounds = 0;
    for (Call& call : calls_) {
      call.base_round = rounds;
      rounds += call.gpu_plans[0].rounds;
    }
    for (Rank& rank : ranks_) {
      rank.blocks.resize(stripes.num_blocks);
      rank.slots.resize(num_slots_);
      for (Slot& slot : rank.slots) {
        slot.bytes.resize(geometry.slot_bytes);
        slot.carries.resize(geometry.slot_bytes / kVectorBytes);
      }
    }
  }

  // Returns the first problem, or "" if all calls end with the right outputs.
  std::string Run(std::mt19937& random) {
    std::vector<std::pair<int, uint32_t>> blocks;
    for (size_t rank = 0; rank < ranks_.size(); ++rank)
      for (uint32_t b = 0; b < stripes_.num_blocks; ++b)
        blocks.emplace_back(rank, b);
    for (bool moved = true; moved && problem_.empty();) {
      moved = false;
      std::shuffle(blocks.begin(), blocks.end(), random);
      for (const auto& [rank, block] : blocks) {
        const uint32_t first = random() % 2;
        for (uint32_t i = 0; i < 2; ++i) {
          // Sometimes a direction runs far ahead of all others.
          const int most = random() % 8 == 0 ? 1000 : 1 + random() % 3;
          for (int k = 0; k < most && TryStep(rank, block, (first + i) % 2);
               ++k)
            moved = true;
        }
        if (moved && random() % 2 == 0) break;
      }
    }
    CheckEnd();
    return problem_;
  }

 private:
  enum { kSending = 0, kReceiving = 1 };

  struct Block {
    uint64_t published = 0;
    uint64_t released = 0;
    uint32_t received = 0;    // receiving steps that the sending steps know of
    size_t next[2] = {0, 0};  // step of each direction
  };
  struct Slot {
    Bytes bytes;
    std::vector<uint64_t> carries;  // by vector: its round + 1
  };
  struct Rank {
    size_t call = 0;
    uint64_t bytes_published = 0;
    uint64_t bytes_retrieved = 0;
    std::vector<Block> blocks;
    std::vector<Slot> slots;
  };

  template <typename... Parts>
  void Problem(const Parts&... parts) {
    if (problem_.empty()) problem_ = Error(Code::kInternal, parts...).message();
  }

  static const std::vector<DeviceStep>& Steps(const GpuPlan& gpu_plan,
                                              int direction) {
    return direction == kSending ? gpu_plan.sending : gpu_plan.receiving;
  }

  bool Owns(uint32_t block, uint64_t at) const {
    return at / stripes_.unit_bytes % stripes_.num_blocks == block;
  }

  // Calls visit(offset, bytes) for each vector in bytes [at, at + bytes) of a
  // slot that belongs to the stripes of the block. `offset` is relative to
  // `at`.
  template <typename Visit>
  void EachVector(uint32_t block, uint64_t at, uint64_t bytes,
                  const Visit& visit) {
    if (at % kVectorBytes != 0) Problem("a part starts at byte ", at);
    for (uint64_t i = 0; i < bytes; i += kVectorBytes)
      if (Owns(block, at + i)) visit(i, std::min(kVectorBytes, bytes - i));
  }

  bool HasStripes(uint32_t block, uint64_t at, uint64_t bytes) {
    bool has = false;
    EachVector(block, at, bytes, [&](uint64_t, uint64_t) { has = true; });
    return has;
  }

  bool Published(int rank, uint32_t block, int first, int last,
                 uint64_t round) const {
    for (int peer = first; peer < last; ++peer)
      if (peer != rank && ranks_[peer].blocks[block].published <= round)
        return false;
    return true;
  }

  bool SlotIsFree(int rank, uint32_t block, uint64_t round) const {
    for (int peer = 0; peer < static_cast<int>(ranks_.size()); ++peer)
      if (peer != rank &&
          ranks_[peer].blocks[block].released + num_slots_ <= round)
        return false;
    return true;
  }

  Slot& SlotOf(int owner, uint32_t block, uint64_t round) {
    return ranks_[owner]
        .slots[plan::SlotOfBlock(round, block, stripes_.slot_step, num_slots_)];
  }

  uint8_t Read(int rank, uint32_t block, int owner, uint64_t round,
               uint64_t at) {
    const Slot& slot = SlotOf(owner, block, round);
    const uint64_t carries = slot.carries[at / kVectorBytes];
    if (carries < round + 1)
      Problem("rank ", rank, " reads byte ", at, " of rank ", owner,
              " before it was written for round ", round);
    if (carries > round + 1)
      Problem("rank ", owner, " overwrote byte ", at, " of round ", round,
              " before rank ", rank, " read it");
    return slot.bytes[at];
  }

  // Writes a whole vector of a slot, as a thread does. The vector begins with
  // `values`. Its other bytes do not matter, and become 0.
  void Write(int rank, uint32_t block, uint64_t round, uint64_t at,
             const Bytes& values) {
    Slot& slot = SlotOf(rank, block, round);
    if (!Owns(block, at))
      Problem("block ", block, " of rank ", rank, " writes byte ", at);
    uint64_t& carries = slot.carries[at / kVectorBytes];
    if (carries == round + 1)
      Problem("rank ", rank, " writes byte ", at, " of round ", round,
              " twice");
    carries = round + 1;
    for (uint64_t i = 0; i < kVectorBytes; ++i)
      slot.bytes[at + i] = i < values.size() ? values[i] : 0;
    ranks_[rank].bytes_published += values.size();
  }

  // Does the next step of a block in one direction (kSending or kReceiving).
  // Returns false if the step has to wait, or if all steps are done.
  bool TryStep(int rank, uint32_t block, int direction) {
    Rank& state = ranks_[rank];
    if (state.call == calls_.size()) return false;
    Call& call = calls_[state.call];
    Block& mine = state.blocks[block];
    const std::vector<DeviceStep>& steps =
        Steps(call.gpu_plans[rank], direction);
    if (mine.next[direction] == steps.size()) return false;
    if (!Execute(call, rank, block, steps[mine.next[direction]])) return false;
    ++mine.next[direction];
    FinishCall(rank);
    return problem_.empty();
  }

  // If all blocks of the rank's kernel are done, ends its call and starts the
  // next one.
  void FinishCall(int rank) {
    Rank& state = ranks_[rank];
    while (state.call < calls_.size()) {
      const GpuPlan& gpu_plan = calls_[state.call].gpu_plans[rank];
      for (const Block& block : state.blocks)
        for (int direction : {kSending, kReceiving})
          if (block.next[direction] < Steps(gpu_plan, direction).size()) return;
      if (state.bytes_published != gpu_plan.bytes_published ||
          state.bytes_retrieved != gpu_plan.bytes_retrieved)
        Problem("rank ", rank, " moved ", state.bytes_published, " and ",
                state.bytes_retrieved, " bytes, not ", gpu_plan.bytes_published,
                " and ", gpu_plan.bytes_retrieved);
      state.bytes_published = state.bytes_retrieved = 0;
      for (Block& block : state.blocks) {
        block.received = 0;
        block.next[kSending] = block.next[kReceiving] = 0;
      }
      ++state.call;
    }
  }

  bool Execute(Call& call, int rank, uint32_t block, const DeviceStep& step) {
    Block& mine = ranks_[rank].blocks[block];
    const Bytes& input = call.inputs[rank];
    Bytes& output = call.outputs[rank];
    const uint64_t round = call.base_round + step.round;
    switch (step.kind) {
      case DeviceStepKind::kCopy:
        EachVector(block, 0, step.bytes, [&](uint64_t i, uint64_t bytes) {
          std::copy_n(&input[step.from + i], bytes, &output[step.to + i]);
        });
        return true;
      case DeviceStepKind::kZero:
        EachVector(block, 0, step.bytes, [&](uint64_t i, uint64_t bytes) {
          std::fill_n(&output[step.to + i], bytes, 0);
        });
        return true;
      case DeviceStepKind::kPut:
        if (!HasStripes(block, step.to, step.bytes)) return true;
        if (!SlotIsFree(rank, block, round)) return false;
        EachVector(block, step.to, step.bytes, [&](uint64_t i, uint64_t bytes) {
          const uint8_t* from = &input[step.from + i];
          Write(rank, block, round, step.to + i, Bytes(from, from + bytes));
        });
        return true;
      case DeviceStepKind::kPublish:
        if (mine.received < step.after) return false;
        mine.published = round + 1;
        return true;
      case DeviceStepKind::kGet:
        return Get(rank, block, round, step, output);
      case DeviceStepKind::kReduce:
      case DeviceStepKind::kReduceToSlot:
      case DeviceStepKind::kReduceToBoth:
        return Reduce(call, rank, block, step);
      case DeviceStepKind::kRelease:
        mine.released = round + 1;
        return true;
    }
    return false;
  }

  bool Get(int rank, uint32_t block, uint64_t round, const DeviceStep& step,
           Bytes& output) {
    const int peer = step.first;
    if (step.bytes == 0)
      return block != 0 || Published(rank, block, peer, peer + 1, round);
    if (!HasStripes(block, step.from, step.bytes)) return true;
    if (!Published(rank, block, peer, peer + 1, round)) return false;
    EachVector(block, step.from, step.bytes, [&](uint64_t i, uint64_t bytes) {
      for (uint64_t k = i; k < i + bytes; ++k)
        output[step.to + k] = Read(rank, block, peer, round, step.from + k);
      ranks_[rank].bytes_retrieved += bytes;
    });
    return true;
  }

  bool Reduce(Call& call, int rank, uint32_t block, const DeviceStep& step) {
    Block& mine = ranks_[rank].blocks[block];
    const uint64_t round = call.base_round + step.round;
    const uint64_t to_round = call.base_round + step.to_round;
    const bool to_slot = step.kind != DeviceStepKind::kReduce;
    if (HasStripes(block, step.from, step.bytes)) {
      if (to_slot && !SlotIsFree(rank, block, to_round)) return false;
      if (!Published(rank, block, step.first, step.last, round)) return false;
    }
    EachVector(block, step.from, step.bytes, [&](uint64_t i, uint64_t bytes) {
      Bytes sums(bytes);
      for (int source = step.first; source < step.last; ++source) {
        for (uint64_t k = 0; k < bytes; ++k) {
          const uint8_t term =
              source == rank
                  ? call.inputs[rank][step.input_from + i + k]
                  : Read(rank, block, source, round, step.from + i + k);
          sums[k] = source == step.first ? term : Combine(sums[k], term);
        }
        if (source != rank) ranks_[rank].bytes_retrieved += bytes;
      }
      if (step.kind != DeviceStepKind::kReduceToSlot)
        std::copy_n(sums.data(), bytes, &call.outputs[rank][step.to + i]);
      if (to_slot) Write(rank, block, to_round, step.to_slot + i, sums);
    });
    if (to_slot) mine.received = mine.next[kReceiving] + 1;
    return true;
  }

  void CheckEnd() {
    for (size_t rank = 0; rank < ranks_.size(); ++rank) {
      if (ranks_[rank].call < calls_.size())
        Problem("rank ", rank, " is stuck in call ", ranks_[rank].call);
    }
    for (const Call& call : calls_) {
      for (size_t rank = 0; rank < ranks_.size(); ++rank) {
        const Bytes expected = ExpectedOutput(call, rank);
        const Bytes& output = call.outputs[rank];
        const auto at = std::mismatch(output.begin(), output.end(),
                                      expected.begin(), expected.end());
        if (at.first != output.end())
          Problem(OpName(call.request.op), ": byte ", at.first - output.begin(),
                  " of rank ", rank, "'s output is wrong");
      }
    }
  }

  std::vector<Call> calls_;
  const uint64_t num_slots_;
  const Stripes stripes_;
  std::vector<Rank> ranks_;
  std::string problem_;
};

}  // namespace jax_cxl::cuda

#endif  // JAX_CXL_TESTING_REFERENCE_GPU_PLAN_MACHINE_H_
