#include "cc/testing/verify/verify.h"

#include <sstream>
#include <string>
#include <utility>

#include "cc/plan/planners/make_plan.h"
#include "cc/testing/verify/debug_string.h"
#include "cc/testing/verify/expected_output.h"
#include "cc/testing/verify/extents.h"
#include "cc/testing/verify/step_checks.h"

// Why one schedule proves all of them.
//
// A step waits until counters of other ranks reach a value, and counters only
// grow. So a step that can run stays able to run, whatever else runs first. The
// set of steps that can ever run is therefore the same under every schedule. If
// a greedy schedule gets stuck, every schedule does. If a greedy schedule
// finishes, every schedule does.
//
// A step also reads the same data under every schedule, because each rank's
// program obeys two rules:
//  - It does not write a slot in a round that it has already published. A
//    reader waits for the publication, so it finds the final bytes.
//  - It does not read a round that it has already released. The owner waits for
//    the releases of all peers before it writes the slot for a later round, so
//    it does not write while a peer reads.
// Thus the bytes of a slot in a round depend only on the owner's program.
//
// Consecutive calls need no proof of their own. Each call starts with all
// counters at or below its first round. If a rank is already in the next call,
// its steps only raise counters, and so block no step of this call.
namespace jax_cxl::plan {
namespace {

constexpr uint64_t kStale = ~uint64_t{0};

struct Slot {
  uint64_t round = kStale;  // counted from the start of the group
  Extents content;
};

struct RankState {
  size_t next = 0;  // index of the next step
  uint64_t published = 0;
  uint64_t released = 0;
  uint64_t written = 0;  // the last round written, plus 1
  std::vector<Slot> slots;
  Extents output;
  std::vector<bool> awaited;  // peers
};

std::string Describe(const Extents& extents) {
  std::ostringstream text;
  for (const Extent& extent : extents.extents()) {
    text << " [" << extent.begin << ", " << extent.end << "): ";
    if (extent.value.zero) {
      text << "zero;";
    } else {
      text << "ranks [" << extent.value.first << ", " << extent.value.last
           << ") from " << extent.value.offset << ";";
    }
  }
  return extents.extents().empty() ? " nothing" : text.str();
}

template <typename... Parts>
Status Wrong(const Parts&... parts) {
  return Error(Code::kInternal, parts...);
}

class Verifier {
 public:
  Verifier(const Request& request, const Geometry& geometry,
           const std::vector<Plan>& plans, const Setting& setting)
      : request_(request),
        geometry_(geometry),
        plans_(plans),
        setting_(setting) {}

  Result<Traffic> Run() {
    CXL_RETURN_IF_ERROR(Start());
    for (bool moved = true; moved;) {
      moved = false;
      for (int rank = 0; rank < request_.num_ranks; ++rank) {
        const std::vector<Step>& steps = plans_[rank].steps;
        RankState& state = ranks_[rank];
        while (state.next < steps.size()) {
          const Step& step = steps[state.next];
          if (Status status = CheckStep(request_, geometry_,
                                        plans_[rank].rounds, rank, step);
              !status.ok()) {
            return At(rank, status);
          }
          if (BlockedOn(rank, step) >= 0) break;
          if (Status status = Execute(rank, step); !status.ok()) {
            return At(rank, status);
          }
          ++state.next;
          moved = true;
        }
      }
    }
    CXL_RETURN_IF_ERROR(Finish());
    return std::move(traffic_);
  }

 private:
  Status Start() {
    if (plans_.size() != static_cast<size_t>(request_.num_ranks)) {
      return Wrong(plans_.size(), " plans for ", request_.num_ranks, " ranks");
    }
    ranks_.resize(request_.num_ranks);
    for (int rank = 0; rank < request_.num_ranks; ++rank) {
      const uint64_t rounds = plans_[rank].rounds;
      if (rounds < 1 || rounds != plans_[0].rounds) {
        return Wrong("rank ", rank, " has ", rounds, " rounds, rank 0 has ",
                     plans_[0].rounds);
      }
      RankState& state = ranks_[rank];
      state.published = state.released = setting_.start_round;
      state.written = setting_.start_round;
      state.slots.resize(geometry_.num_slots);
      state.awaited.resize(request_.num_ranks);
      state.awaited[rank] = true;
    }
    traffic_.by_rank.resize(request_.num_ranks);
    traffic_.by_device.resize(setting_.num_devices);
    return OkStatus();
  }

  // Returns the rank that a step has to wait for, or -1 if the step can run.
  int BlockedOn(int rank, const Step& step) const {
    const uint64_t slots = geometry_.num_slots;
    if (step.kind == StepKind::kPut || step.kind == StepKind::kPutOutput ||
        step.kind == StepKind::kReduceToSlot) {
      const uint64_t round = WrittenRound(step);
      for (int peer = 0; peer < request_.num_ranks; ++peer) {
        if (peer == rank) continue;
        if (ranks_[peer].released + slots <= round) return peer;
      }
    }
    const auto [first, last] = Sources(step);
    for (int peer = first; peer < last; ++peer) {
      if (peer == rank) continue;
      if (ranks_[peer].published <= Absolute(step.round)) return peer;
    }
    return -1;
  }

  Status Execute(int rank, const Step& step) {
    RankState& state = ranks_[rank];
    switch (step.kind) {
      case StepKind::kCopy:
        return WriteOutput(rank, step, 0, step.bytes,
                           Value::Input(rank, step.from));
      case StepKind::kZero:
        return WriteOutput(rank, step, 0, step.bytes, Value::Zero());
      case StepKind::kPut:
        return WriteSlot(rank, step, 0, step.bytes,
                         Value::Input(rank, step.from));
      case StepKind::kPutOutput:
        return PutOutput(rank, step);
      case StepKind::kPublish:
        return Raise(step, state.published);
      case StepKind::kRelease:
        return Raise(step, state.released);
      case StepKind::kGet:
        return Get(rank, step);
      case StepKind::kReduce:
      case StepKind::kReduceToSlot:
        return Reduce(rank, step);
    }
    return Wrong("unknown kind");
  }

  Status Raise(const Step& step, uint64_t& counter) const {
    const uint64_t value = Absolute(step.round) + 1;
    if (value <= counter) return Wrong("the counter does not grow");
    counter = value;
    return OkStatus();
  }

  Status PutOutput(int rank, const Step& step) {
    for (uint64_t at = 0; at < step.bytes;) {
      const auto extent =
          ranks_[rank].output.At(step.from + at, step.from + step.bytes);
      if (!extent) return Wrong("puts output that was not written");
      const uint64_t size = extent->end - extent->begin;
      CXL_RETURN_IF_ERROR(WriteSlot(rank, step, at, size, extent->value));
      at += size;
    }
    return OkStatus();
  }

  Status Get(int rank, const Step& step) {
    RankState& state = ranks_[rank];
    state.awaited[step.peer] = true;
    for (uint64_t at = 0; at < step.bytes;) {
      CXL_ASSIGN_OR_RETURN(const Extent extent,
                           ReadSlot(rank, step.peer, step, at));
      const uint64_t size = extent.end - extent.begin;
      CXL_RETURN_IF_ERROR(WriteOutput(rank, step, at, size, extent.value));
      at += size;
    }
    CountRead(rank, step.peer, step);
    return OkStatus();
  }

  Status Reduce(int rank, const Step& step) {
    for (int source = step.first; source < step.last; ++source) {
      ranks_[rank].awaited[source] = true;
      if (source != rank) CountRead(rank, source, step);
    }
    for (uint64_t at = 0; at < step.bytes;) {
      uint64_t size = step.bytes - at;
      uint64_t offset = 0;
      for (int source = step.first; source < step.last; ++source) {
        Value value = Value::Input(rank, step.input_from + at);
        if (source != rank) {
          CXL_ASSIGN_OR_RETURN(const Extent extent,
                               ReadSlot(rank, source, step, at));
          size = std::min(size, extent.end - extent.begin);
          value = extent.value;
        }
        if (source == step.first) offset = value.offset;
        // Each operand must be the input of its rank, and not a fold over
        // several inputs. Some types accumulate in a wider type, and a fold
        // over such partial results would round more than once.
        if (value != Value::Input(source, offset)) {
          return Wrong("operand ", source, " is not the input of that rank at ",
                       offset);
        }
      }
      const Value fold = Value::Fold(step.first, step.last, offset);
      CXL_RETURN_IF_ERROR(step.kind == StepKind::kReduce
                              ? WriteOutput(rank, step, at, size, fold)
                              : WriteSlot(rank, step, at, size, fold));
      at += size;
    }
    return OkStatus();
  }

  // Writes bytes [at, at + size) of the data that the step moves.
  Status WriteOutput(int rank, const Step& step, uint64_t at, uint64_t size,
                     const Value& value) {
    const uint64_t begin = step.to + at;
    if (!ranks_[rank].output.Write(begin, begin + size, value)) {
      return Wrong("writes output that was written before");
    }
    return OkStatus();
  }

  Status WriteSlot(int rank, const Step& step, uint64_t at, uint64_t size,
                   const Value& value) {
    RankState& state = ranks_[rank];
    const uint64_t round = WrittenRound(step), begin = step.to + at;
    if (state.published > round) {
      return Wrong("writes a slot that was published");
    }
    Slot& slot = state.slots[round % geometry_.num_slots];
    if (slot.round != round) {
      if (slot.round != kStale && slot.round > round) {
        return Wrong("writes a slot that holds a later round");
      }
      slot.round = round;
      slot.content.Clear();
    }
    if (!slot.content.Write(begin, begin + size, value)) {
      return Wrong("writes part of a slot that was written before");
    }
    state.written = std::max(state.written, round + 1);
    traffic_.by_rank[rank].written += size;
    traffic_.by_device[Device(rank, round)].written += size;
    return OkStatus();
  }

  // Returns the extent of `peer`'s slot that begins at the byte from which the
  // step reads byte `at` of the step's data.
  Result<Extent> ReadSlot(int rank, int peer, const Step& step,
                          uint64_t at) const {
    const uint64_t round = Absolute(step.round);
    if (ranks_[rank].released > round) {
      return Wrong("reads a round that it has released");
    }
    const Slot& slot = ranks_[peer].slots[round % geometry_.num_slots];
    if (slot.round != round) {
      return Wrong("rank ", peer, " put nothing in this round");
    }
    const auto extent = slot.content.At(step.from + at, step.from + step.bytes);
    if (!extent) {
      return Wrong("rank ", peer, " did not put byte ", step.from + at);
    }
    return *extent;
  }

  void CountRead(int rank, int peer, const Step& step) {
    traffic_.by_rank[rank].read += step.bytes;
    traffic_.by_device[Device(peer, Absolute(step.round))].read += step.bytes;
  }

  Status Finish() const {
    for (int rank = 0; rank < request_.num_ranks; ++rank) {
      const RankState& state = ranks_[rank];
      const Plan& plan = plans_[rank];
      if (state.next < plan.steps.size()) {
        const int peer = BlockedOn(rank, plan.steps[state.next]);
        return At(rank, Wrong("deadlock: waits for rank ", peer));
      }
      if (state.released != setting_.start_round + plan.rounds) {
        return Wrong("rank ", rank, " ends without releasing all rounds");
      }
      if (state.written > state.published) {
        return Wrong("rank ", rank, " does not publish what it put");
      }
      const Extents expected = ExpectedOutput(request_, rank);
      if (state.output.extents() != expected.extents()) {
        return Wrong("rank ", rank, " outputs", Describe(state.output),
                     " instead of", Describe(expected));
      }
      if (request_.op != Op::kBarrier) continue;
      // A barrier has no output, so check that it waits for every rank.
      for (int peer = 0; peer < request_.num_ranks; ++peer) {
        if (!state.awaited[peer]) {
          return Wrong("rank ", rank, " does not wait for rank ", peer);
        }
      }
    }
    return OkStatus();
  }

  Status At(int rank, const Status& status) const {
    const size_t index = ranks_[rank].next;
    return Wrong("rank ", rank, ", step ", index, " (",
                 DebugString(plans_[rank].steps[index]),
                 "): ", status.message());
  }

  // Returns the ranks [first, last) whose slots a step reads. The range may
  // include the step's own rank, whose slot it does not read.
  static std::pair<int, int> Sources(const Step& step) {
    switch (step.kind) {
      case StepKind::kGet:
        return {step.peer, step.peer + 1};
      case StepKind::kReduce:
      case StepKind::kReduceToSlot:
        return {step.first, step.last};
      default:
        return {0, 0};
    }
  }

  uint64_t Absolute(uint64_t round) const {
    return setting_.start_round + round;
  }

  uint64_t WrittenRound(const Step& step) const {
    return Absolute(step.kind == StepKind::kReduceToSlot ? step.to_round
                                                         : step.round);
  }

  int Device(int rank, uint64_t round) const {
    const uint64_t devices = setting_.num_devices;
    const uint64_t home = rank * devices / request_.num_ranks;
    return static_cast<int>((home + round % geometry_.num_slots) % devices);
  }

  const Request& request_;
  const Geometry& geometry_;
  const std::vector<Plan>& plans_;
  const Setting& setting_;
  std::vector<RankState> ranks_;
  Traffic traffic_;
};

}  // namespace

Result<std::vector<Plan>> MakePlans(Request request, const Geometry& geometry) {
  std::vector<Plan> plans;
  for (request.rank = 0; request.rank < request.num_ranks; ++request.rank) {
    CXL_ASSIGN_OR_RETURN(Plan plan, MakePlan(request, geometry));
    plans.push_back(std::move(plan));
  }
  return plans;
}

Result<Traffic> Verify(const Request& request, const Geometry& geometry,
                       const std::vector<Plan>& plans, const Setting& setting) {
  return Verifier(request, geometry, plans, setting).Run();
}

}  // namespace jax_cxl::plan
