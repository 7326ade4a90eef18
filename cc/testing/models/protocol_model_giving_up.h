#ifndef JAX_CXL_TESTING_MODELS_PROTOCOL_MODEL_GIVING_UP_H_
#define JAX_CXL_TESTING_MODELS_PROTOCOL_MODEL_GIVING_UP_H_

#include <algorithm>
#include <vector>

#include "cc/testing/models/protocol_model_negotiation.h"
#include "cc/testing/models/protocol_model_plans.h"
#include "cc/testing/models/protocol_model_turn.h"

// Deaths, timeouts, and how the other ranks notice them. Models wait_monitor.cc
// and peers.cc.
namespace jax_cxl::comm::model {

// Returns the members that a rank waits for. The rank gives up if one of them
// is dead.
inline std::vector<int> WaitingFor(const Turn& turn) {
  const Rank& me = turn.me;
  if (me.current == 0) return WaitingForOrder(turn);
  const plan::Plan& plan = turn.PlanOf(me.current - 1, turn.self);
  if (me.step == plan.steps.size()) return {};
  const int peer = Blocker(turn, plan.steps[me.step]);
  return peer < 0 ? std::vector<int>() : std::vector<int>{peer};
}

// Adds the steps in which a rank notices that a member is dead, has left or has
// given up. `stuck` is true if the rank has looked for what it waits for, and
// has not found it.
inline void Watch(Turn& turn, bool stuck) {
  const Rank& me = turn.me;
  const auto left = [&](int m) {
    return turn.state.rank[m].done == turn.all_calls();
  };
  const std::vector<int> members = WaitingFor(turn);
  for (int m : members) {
    if (turn.state.rank[m].life != kDead && !(stuck && left(m))) continue;
    turn.Mine(turn.Add("misses a peer")).life = kGivingUp;
    break;
  }
  // The real code looks for a message, and then checks whether its sender has
  // left. After the first look, the message may have arrived, and the sender
  // may have left. So the rank has to look a second time before it gives up. A
  // model with this fault does not look again.
  if (turn.Has(Fault::kSecondLook)) {
    for (int m : members)
      if (stuck && me.suspects != m + 1)
        turn.Mine(turn.Add("looks in vain")).suspects = m + 1;
    if (me.suspects > 0 && left(me.suspects - 1))
      turn.Mine(turn.Add("sees that a peer left")).life = kGivingUp;
  }
  for (int m = 0; m < turn.setup.ranks; ++m) {
    const Rank& peer = turn.state.rank[m];
    if (m == turn.self || peer.abort < 3) continue;
    if (!peer.reason_in_pool) turn.Wrong("does not find a peer's reason");
    turn.Mine(turn.Add("sees that a peer gave up")).life = kGivingUp;
    break;
  }
}

inline void GiveUp(Turn& turn) {
  State& next = turn.Add("gives up");
  Rank& mine = turn.Mine(next);
  if (turn.Has(Fault::kAbort)) {
    mine.life = kGaveUp;
    return;
  }
  ++mine.abort;
  if (mine.abort == 2 && !turn.Has(Fault::kAbortPublish))
    mine.reason_in_pool = 1;
  if (mine.abort == 3) mine.life = kGaveUp;
}

// Adds the failures that a rank may have at any time: it dies or times out.
inline void AddFailures(Turn& turn) {
  const Rank& me = turn.me;
  if (me.life > kGivingUp || me.done == turn.all_calls()) return;
  if (turn.state.crashes < turn.setup.crashes) {
    State& next = turn.Add("dies");
    turn.Mine(next).life = kDead;
    ++next.crashes;
  }
  if (turn.state.timeouts < turn.setup.timeouts && me.life == kLive) {
    State& next = turn.Add("times out");
    turn.Mine(next).life = kGivingUp;
    ++next.timeouts;
  }
}

// Called for each rank of a state in which no rank can do a step. Checks that
// this rank has ended as it should.
inline void CheckEnd(Turn& turn) {
  const Rank& me = turn.me;
  if (me.life == kDead || me.done == turn.all_calls()) return;
  const auto& kinds = turn.setup.kinds;
  const bool agree = std::equal(kinds.begin() + (kinds.empty() ? 0 : 1),
                                kinds.end(), kinds.begin());
  if (me.life != kGaveUp)
    turn.Wrong("waits forever");
  else if (turn.state.crashes == 0 && turn.state.timeouts == 0 && agree)
    turn.Wrong("gives up though nothing happened");
}

}  // namespace jax_cxl::comm::model

#endif  // JAX_CXL_TESTING_MODELS_PROTOCOL_MODEL_GIVING_UP_H_
