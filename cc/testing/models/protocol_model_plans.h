#ifndef JAX_CXL_TESTING_MODELS_PROTOCOL_MODEL_PLANS_H_
#define JAX_CXL_TESTING_MODELS_PROTOCOL_MODEL_PLANS_H_

#include <algorithm>
#include <vector>

#include "cc/testing/models/protocol_model_turn.h"

// Slots, doorbells and releases in the order of real plans. Models the
// executor.
namespace jax_cxl::comm::model {

// The modeled parts [first, last) of a slot that contain bytes [at, at +
// bytes).
struct Parts {
  int first, last;

  Parts(const Configuration& setup, uint64_t at, uint64_t bytes)
      : first(setup.parts == 1 ? 0
                               : static_cast<int>(at / plan::kSlotAlignment)),
        last(setup.parts == 1
                 ? 1
                 : static_cast<int>((at + bytes - 1) / plan::kSlotAlignment) +
                       1) {}
};

// Returns the round whose slot the step fills, or -1 if it fills none. Rounds
// are counted from the start of the job.
inline int FilledRound(const Turn& turn, const plan::Step& step) {
  switch (step.kind) {
    case plan::StepKind::kPut:
    case plan::StepKind::kPutOutput:
      return turn.me.rounds + static_cast<int>(step.round);
    case plan::StepKind::kReduceToSlot:
      return turn.me.rounds + static_cast<int>(step.to_round);
    default:
      return -1;
  }
}

// Returns the other ranks whose slots the step reads.
inline std::vector<int> Sources(const Turn& turn, const plan::Step& step) {
  std::vector<int> sources;
  if (step.kind == plan::StepKind::kGet) sources.push_back(step.peer);
  if (step.kind == plan::StepKind::kReduce ||
      step.kind == plan::StepKind::kReduceToSlot)
    for (int m = step.first; m < step.last; ++m)
      if (m != turn.self) sources.push_back(m);
  return sources;
}

// Returns a peer that the step has to wait for, or -1 if the step can run.
inline int Blocker(const Turn& turn, const plan::Step& step) {
  const Fault fault = step.kind == plan::StepKind::kPut ? Fault::kReleasedWait
                                                        : Fault::kResultWait;
  if (const int fills = FilledRound(turn, step);
      fills >= 0 && !turn.Has(fault)) {
    for (int m = 0; m < turn.setup.ranks; ++m)
      if (m != turn.self &&
          turn.state.rank[m].released + turn.setup.num_slots <= fills)
        return m;
  }
  if (turn.Has(Fault::kPublishedWait)) return -1;
  const int round = turn.me.rounds + static_cast<int>(step.round);
  for (int m : Sources(turn, step))
    if (turn.state.rank[m].published <= round) return m;
  return -1;
}

inline void NextStep(Turn& turn, State* next) {
  ++turn.Mine(*next).step;
  turn.Mine(*next).part = 0;
}

// Adds the next part of a step that fills this rank's slot: first a part that
// stores into the slot, and then, in a second call, a part that publishes it.
// `before` is how many parts of the step come before these two.
inline void Fill(Turn& turn, const plan::Step& step, int before) {
  const int round = FilledRound(turn, step);
  const int entry = round % turn.setup.num_slots;
  const Parts parts(turn.setup, step.to, step.bytes);
  const bool stored = turn.me.part > before;
  State& next = turn.Add(stored ? "publishes a slot" : "stores into a slot");
  for (int p = parts.first; p < parts.last; ++p) {
    if (!stored)
      turn.Mine(next).stored[entry][p] = round + 1;
    else if (!turn.Has(Fault::kSlotPublish))
      next.slot[turn.self][entry][p] = round + 1;
  }
  if (stored)
    NextStep(turn, &next);
  else
    ++turn.Mine(next).part;
}

// Adds the next part of a step that reads slots. Each call acquires the slot of
// one of `sources`. After that, one more call reads all of these slots.
inline void Retrieve(Turn& turn, const plan::Step& step,
                     const std::vector<int>& sources) {
  const size_t part = turn.me.part;
  const int round = turn.me.rounds + static_cast<int>(step.round);
  const int entry = round % turn.setup.num_slots;
  const Parts parts(turn.setup, step.from, step.bytes);
  for (size_t i = 0; i < sources.size() && i <= part; ++i) {
    for (int p = parts.first; p < parts.last; ++p)
      turn.Expect(turn.Has(Fault::kSlotAcquire)
                      ? round + 1 - turn.setup.num_slots
                      : turn.state.slot[sources[i]][entry][p],
                  round + 1, "round");
    turn.CheckSameCall(sources[i], turn.me.current - 1);
  }
  State* next;
  if (part < sources.size()) {
    next = &turn.Add("acquires a slot");
    ++turn.Mine(*next).part;
  } else if (step.kind == plan::StepKind::kReduceToSlot) {
    Fill(turn, step, static_cast<int>(sources.size()));
    return;
  } else {
    next = &turn.Add("reads slots");
    NextStep(turn, next);
  }
  if (turn.Has(Fault::kReleaseAfterReading))
    turn.Mine(*next).released = round + 1;
}

// Does the next step of the current call.
inline void Execute(Turn& turn) {
  const Rank& me = turn.me;
  const int call = me.current - 1;
  const plan::Plan& plan = turn.PlanOf(call, turn.self);
  if (me.step == plan.steps.size()) {
    State& next = turn.Add("finishes a call");
    Rank& mine = turn.Mine(next);
    mine.done |= Turn::Bit(call);
    mine.rounds += plan.rounds;
    mine.current = mine.step = 0;
    return;
  }
  const plan::Step& step = plan.steps[me.step];
  if (me.part == 0 && Blocker(turn, step) >= 0) return;
  const int round = me.rounds + static_cast<int>(step.round);
  switch (step.kind) {
    case plan::StepKind::kPut:
    case plan::StepKind::kPutOutput:
      Fill(turn, step, 0);
      break;
    case plan::StepKind::kPublish: {
      State& next = turn.Add("rings for a slot");
      NextStep(turn, &next);
      turn.Mine(next).published = round + 1;
      break;
    }
    case plan::StepKind::kGet:
    case plan::StepKind::kReduce:
    case plan::StepKind::kReduceToSlot:
      Retrieve(turn, step,
               step.bytes > 0 ? Sources(turn, step) : std::vector<int>());
      break;
    case plan::StepKind::kRelease: {
      State& next = turn.Add("releases a slot");
      NextStep(turn, &next);
      turn.Mine(next).released = std::max<int>(me.released, round + 1);
      break;
    }
    case plan::StepKind::kCopy:
    case plan::StepKind::kZero:
      NextStep(turn, &turn.Add("copies"));
      break;
  }
}

}  // namespace jax_cxl::comm::model

#endif  // JAX_CXL_TESTING_MODELS_PROTOCOL_MODEL_PLANS_H_
