#ifndef JAX_CXL_TESTING_MODELS_PROTOCOL_MODEL_IN_ORDER_H_
#define JAX_CXL_TESTING_MODELS_PROTOCOL_MODEL_IN_ORDER_H_

#include <vector>

#include "cc/testing/models/protocol_model_submissions.h"
#include "cc/testing/models/protocol_model_turn.h"

// Calls in program order: each says what it is, and compares with what those
// say whose data it reads, as in_order.cc has them. What is waited for and what
// is only looked at once is as there, or orders that never end would hide.
namespace jax_cxl::comm::model {

// Before data of `member` is read in `call`: in program order a slot is the
// right one only if all calls before were the same, too.
inline void CheckSameCalls(Turn& turn, int member, int call) {
  for (int c = turn.setup.in_program_order() ? 0 : call; c <= call; ++c)
    if (!turn.SameCall(member, c)) turn.Wrong("reads data of another call");
}

// Members whose data `call` needs, a bit each: as CallPlan::reads.
inline uint8_t Reads(const Turn& turn, int call) {
  if (turn.Eager(call)) return turn.setup.calls[call].eager_reads[turn.self];
  uint8_t reads = 0;
  for (const plan::Step& step : turn.PlanOf(call, turn.self).steps) {
    if (step.kind == plan::StepKind::kGet) reads |= Turn::Bit(step.peer);
    if (step.kind == plan::StepKind::kReduce ||
        step.kind == plan::StepKind::kReduceToSlot)
      for (int m = step.first; m < step.last; ++m) reads |= Turn::Bit(m);
  }
  return reads & ~Turn::Bit(turn.self);
}

// True if what `member` called is mine; else adds the end.
inline bool Compare(Turn& turn, int member, int call) {
  if (turn.SameCall(member, call) || turn.Has(Fault::kCompare)) return true;
  turn.Mine(turn.Add("finds another call")).life = kGivingUp;
  return false;
}

// Reads a submission of `member` below `calls`, if there is one.
inline bool CatchUp(Turn& turn, int member, int calls) {
  const int index = turn.me.read[member];
  if (index >= calls || !IsHere(turn, member, index)) return false;
  if (Compare(turn, member, index)) Read(turn, member);
  return true;
}

// Says what it calls.
inline void Start(Turn& turn) {
  const Rank& me = turn.me;
  if (me.sending > 0) {
    if (State* next = FinishWriting(turn)) turn.Mine(*next).phase = kAwaiting;
  } else if (me.phase == kCatchingUp) {
    // A look at each member.
    int m = me.member;
    if (m == turn.self) ++m;
    if (m < turn.setup.ranks) {
      if (!CatchUp(turn, m, me.sent))
        turn.Mine(turn.Add("has caught up")).member = m + 1;
      return;
    }
    State& next = turn.Add("stores a submission");
    turn.Mine(next).sending = 1;
    turn.Mine(next).member = 0;
  } else if (!CanWrite(turn)) {
    for (int m = 0; m < turn.setup.ranks; ++m)
      if (m != turn.self) CatchUp(turn, m, me.sent);
  } else if (me.sent % turn.setup.calls_per_catch_up != 0 ||
             turn.Has(Fault::kCatchUp)) {
    turn.Mine(turn.Add("stores a submission")).sending = 1;
  } else {
    turn.Mine(turn.Add("begins to catch up")).phase = kCatchingUp;
  }
}

// Until all that the call reads from are in it.
inline void Await(Turn& turn) {
  const Rank& me = turn.me;
  const int call = me.sent - 1;
  const uint8_t reads = Reads(turn, call);
  int m = me.member;
  while (m < turn.setup.ranks && (reads & Turn::Bit(m)) == 0) ++m;
  if (m < turn.setup.ranks) {
    if (CatchUp(turn, m, call) || !IsHere(turn, m, call)) return;
    CheckSubmission(turn, m, call);
    if (!Compare(turn, m, call)) return;
    State& next = turn.Add("acquires a submission");
    turn.Mine(next).member = m + 1;
    if (turn.Has(Fault::kPopAfterReading)) ++turn.Mine(next).read[m];
    return;
  }
  const bool eager = turn.Eager(call);
  State& next = turn.Add(eager ? "reads data" : "begins to execute");
  Rank& mine = turn.Mine(next);
  mine.phase = kStarting;
  mine.member = 0;
  if (eager)
    mine.done |= Turn::Bit(call);
  else
    mine.current = static_cast<uint8_t>(call + 1);
  for (m = 0; m < turn.setup.ranks; ++m) {
    if ((reads & Turn::Bit(m)) == 0) continue;
    if (eager) CheckSubmission(turn, m, call);
    CheckSameCalls(turn, m, call);
    mine.read[m] = me.sent;
  }
}

// Outside plans.
inline std::vector<int> WaitingForCalls(const Turn& turn) {
  const Rank& me = turn.me;
  if (me.phase != kAwaiting)
    return turn.Has(Fault::kWaitingFor) ? std::vector<int>()
                                        : RingHolders(turn);
  const uint8_t reads = Reads(turn, me.sent - 1);
  for (int m = me.member; m < turn.setup.ranks; ++m)
    if ((reads & Turn::Bit(m)) != 0) return {m};
  return {};
}

}  // namespace jax_cxl::comm::model

#endif  // JAX_CXL_TESTING_MODELS_PROTOCOL_MODEL_IN_ORDER_H_
