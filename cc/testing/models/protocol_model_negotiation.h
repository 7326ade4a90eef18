#ifndef JAX_CXL_TESTING_MODELS_PROTOCOL_MODEL_NEGOTIATION_H_
#define JAX_CXL_TESTING_MODELS_PROTOCOL_MODEL_NEGOTIATION_H_

#include <algorithm>
#include <cstddef>
#include <vector>

#include "cc/testing/models/protocol_model_submissions.h"
#include "cc/testing/models/protocol_model_turn.h"

// Calls in any order: submissions, eager calls and announcements. Models
// negotiation.cc.
namespace jax_cxl::comm::model {

// Models Negotiation::AddMember and OnComplete.
inline void Submitted(Turn& turn, State* next, int call, int member) {
  Rank& mine = turn.Mine(*next);
  mine.here[call] |= Turn::Bit(member);
  for (int m = 0; m < turn.setup.ranks; ++m) {
    if ((mine.here[call] & Turn::Bit(m)) == 0 || turn.SameCall(m, call) ||
        (mine.here[call] & Turn::Bit(turn.self)) == 0)
      continue;
    if (!turn.Has(Fault::kCompare))
      mine.life = kGivingUp;
    else if (turn.Eager(call) && mine.here[call] == turn.everyone())
      turn.Wrong("reads data of another call");
  }
  if (turn.Eager(call) && mine.here[call] == turn.everyone() &&
      mine.life == kLive)
    mine.done |= Turn::Bit(call);
}

inline void ExchangeSubmissions(Turn& turn) {
  const Rank& me = turn.me;
  if (me.sent < turn.setup.calls.size()) {
    if (me.sending > 0) {
      if (State* next = FinishWriting(turn))
        Submitted(turn, next, turn.CallAt(turn.self, me.sent), turn.self);
    } else if (CanWrite(turn)) {
      turn.Mine(turn.Add("stores a submission")).sending = 1;
    }
  }
  for (int m = 0; m < turn.setup.ranks; ++m) {
    if (m == turn.self) continue;
    if (State* next = Read(turn, m))
      Submitted(turn, next, turn.CallAt(m, me.read[m]), m);
  }
}

// Returns the number of announced calls, counted from the first one, whose
// slots all other members have finished reading.
inline int LeftBehind(const Turn& turn) {
  const State& state = turn.state;
  int left = 0, rounds = 0;
  for (; left < state.rank[0].ordered; ++left) {
    rounds += static_cast<int>(turn.PlanOf(state.order[left], 0).rounds);
    for (int m = 1; m < turn.setup.ranks; ++m)
      if (state.rank[m].released < rounds) return left;
  }
  return left;
}

inline bool IsOrdered(const Turn& turn, size_t call) {
  const auto* end = turn.state.order + turn.state.rank[0].ordered;
  return std::find(turn.state.order, end, call) != end;
}

inline void Announce(Turn& turn) {
  const Rank& me = turn.me;
  const int ring = turn.setup.announcement_ring;
  if (me.ordering == 1) {
    State& next = turn.Add("publishes an announcement");
    turn.Mine(next).ordering = 2;
    if (!turn.Has(Fault::kAnnouncementPublish))
      next.announcement[me.ordered % ring] = me.ordered + 1;
  } else if (me.ordering == 2) {
    State& next = turn.Add("rings for an announcement");
    turn.Mine(next).ordering = 0;
    turn.Mine(next).current = turn.state.order[me.ordered] + 1;
    ++turn.Mine(next).ordered;
  } else if (turn.Has(Fault::kAnnouncementWait) ||
             me.ordered < ring + LeftBehind(turn)) {
    for (size_t call = 0; call < turn.setup.calls.size(); ++call) {
      if (turn.Eager(call) || me.here[call] != turn.everyone() ||
          IsOrdered(turn, call))
        continue;
      State& next = turn.Add("stores an announcement");
      turn.Mine(next).ordering = 1;
      next.order[me.ordered] = static_cast<uint8_t>(call);
    }
  }
}

inline void Follow(Turn& turn) {
  const Rank& me = turn.me;
  const int ring = turn.setup.announcement_ring;
  const int entry = me.ordered % ring;
  const int ready = Newest(turn.state.rank[0].ordered, entry, ring);
  if (ready <= me.ordered) return;
  turn.Expect(ready, me.ordered + 1, "the doorbell of announcement");
  const int found = turn.Has(Fault::kAnnouncementAcquire)
                        ? ready - ring
                        : turn.state.announcement[entry];
  turn.Expect(found, me.ordered + 1, "announcement");
  // A follower executes an announced call only once it has read all submissions
  // of the call.
  if (me.ordering && me.here[turn.state.order[me.ordered]] != turn.everyone())
    return;
  State& next = turn.Add(me.ordering ? "reads an announcement"
                                     : "acquires an announcement");
  turn.Mine(next).ordering ^= 1;
  if (!me.ordering) return;
  const int call = turn.state.order[me.ordered];
  if ((me.here[call] & Turn::Bit(turn.self)) == 0)
    turn.Wrong("is told to execute a call that it has not submitted");
  turn.Mine(next).current = static_cast<uint8_t>(call + 1);
  ++turn.Mine(next).ordered;
}

// Returns the members that a rank waits for between two calls. Models
// Negotiation::WaitingFor.
inline std::vector<int> WaitingForOrder(const Turn& turn) {
  const Rank& me = turn.me;
  std::vector<int> others;
  for (int m = 0; m < turn.setup.ranks; ++m)
    if (m != turn.self) others.push_back(m);
  for (int call : turn.setup.orders[turn.self]) {
    if ((me.done & Turn::Bit(call)) != 0) continue;
    std::vector<int> missing;
    for (int m : others)
      if ((me.here[call] & Turn::Bit(m)) == 0) missing.push_back(m);
    if (!turn.Has(Fault::kWaitingFor) && me.sent < turn.setup.calls.size()) {
      for (int m : RingHolders(turn)) missing.push_back(m);
    }
    if (!missing.empty()) return missing;
    if (!turn.Has(Fault::kWaitingFor) && turn.self == 0) return others;
    return turn.self == 0 ? std::vector<int>() : std::vector<int>{0};
  }
  return {};
}

}  // namespace jax_cxl::comm::model

#endif  // JAX_CXL_TESTING_MODELS_PROTOCOL_MODEL_NEGOTIATION_H_
