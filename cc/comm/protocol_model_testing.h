#ifndef JAX_CXL_COMM_PROTOCOL_MODEL_TESTING_H_
#define JAX_CXL_COMM_PROTOCOL_MODEL_TESTING_H_

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "cc/comm/protocol_model_state_testing.h"
#include "cc/plan/plan.h"

// A model of how the ranks of a group communicate, small enough to try every
// order of every step: protocol_model_search_testing.h does.
//
// What is modelled, as submissions.cc, negotiation.cc, channel.cc, executor.cc
// and peers.cc do it: rings of submissions with the words that say how far they
// were read; eager calls; announcements; slots, doorbells and releases in the
// order of real plans; giving up, and noticing that a peer died. A rank may do
// any step that it could do next, so that the code's own order is one of many.
//
// Memory is not coherent. A payload is a number, which message it is. A store
// reaches the pool when it is published, or earlier if its line is evicted; a
// reader drops the line and may fetch it anew at any time until it has read it.
// Flags are 8 bytes, stored and loaded as the pool has them.
//
// A rank may die between any two steps. One that is done takes no further part.
// Not modelled: how channels are opened, calls in program order (in_order.h),
// plans that write a slot from other slots, timeouts.
namespace jax_cxl::comm::model {

class Model {
 public:
  explicit Model(const Configuration& setup) : setup_(setup) {
    all_ = static_cast<uint8_t>((1 << setup.calls.size()) - 1);
    everyone_ = static_cast<uint8_t>((1 << setup.ranks) - 1);
  }

  struct Move {
    int rank;
    const char* what;
    State next;
  };

  // Appends every step that some rank, or chance, can make next.
  // Returns what is wrong, "" if nothing is.
  std::string Moves(const State& state, std::vector<Move>* moves) {
    moves_ = moves;
    wrong_.clear();
    for (int r = 0; r < setup_.ranks && wrong_.empty(); ++r) {
      state_ = &state;
      self_ = r;
      const Rank& me = state.rank[r];
      if (me.life == kGivingUp) GiveUp();
      if (me.life != kLive || me.done == all_) continue;
      Send(me);
      for (int m = 0; m < setup_.ranks; ++m)
        if (m != r) Read(me, m);
      if (me.current > 0)
        Execute(me);
      else if (r == 0)
        Announce(me);
      else
        Follow(me);
      Watch(me);
    }
    if (wrong_.empty() && moves->empty()) CheckEnd(state);
    if (!wrong_.empty()) return wrong_;
    for (int r = 0; r < setup_.ranks; ++r) {
      self_ = r;
      Evict(state);
      const Rank& me = state.rank[r];
      if (state.crashes < setup_.crashes && me.life <= kGivingUp &&
          me.done != all_) {
        State& next = Add("dies");
        next.rank[r].life = kDead;
        ++next.crashes;
      }
    }
    return "";
  }

 private:
  bool Has(Fault fault) const { return setup_.fault == fault; }
  int Call(int rank, int index) const { return setup_.orders[rank][index]; }
  const plan::Plan& PlanOf(int call, int rank) const {
    return setup_.calls[call][rank];
  }
  bool Eager(int call) const { return PlanOf(call, 0).steps.empty(); }
  static uint8_t Bit(int i) { return static_cast<uint8_t>(1 << i); }

  State& Add(const char* what) {
    moves_->push_back({self_, what, *state_});
    return moves_->back().next;
  }
  Rank& Mine(State& state) const { return state.rank[self_]; }
  void Expect(int found, int expected, const char* what) {
    if (found != expected && wrong_.empty())
      wrong_ = "rank " + std::to_string(self_) + " reads " + what + " " +
               std::to_string(found) + " in place of " +
               std::to_string(expected);
  }

  // What `reader` says it has read of what `writer` submitted.
  int ReadWord(int reader, int writer) const {
    const int read = state_->rank[reader].read[writer];
    return read - read % setup_.reads_per_word;
  }
  // The members that have yet to free the next entry of my ring.
  std::vector<int> RingHolders(const Rank& me) const {
    std::vector<int> holders;
    for (int m = 0; m < setup_.ranks; ++m)
      if (m != self_ && ReadWord(m, self_) + setup_.submission_ring <= me.sent)
        holders.push_back(m);
    return holders;
  }

  void Submitted(State* next, int call, int member) {
    Rank& mine = Mine(*next);
    mine.here[call] |= Bit(member);
    if (Eager(call) && mine.here[call] == everyone_) mine.done |= Bit(call);
  }

  void Send(const Rank& me) {
    if (me.sent == setup_.calls.size()) return;
    const int entry = me.sent % setup_.submission_ring;
    if (me.sending == 0) {
      if (!Has(Fault::kSubmissionsReadWait) && !RingHolders(me).empty()) return;
      Mine(Add("stores a submission")).sending = 1;
    } else if (me.sending == 1) {
      State& next = Add("publishes a submission");
      Mine(next).sending = 2;
      if (!Has(Fault::kSubmissionPublish))
        next.submission[self_][entry] = me.sent + 1;
    } else {
      State& next = Add("rings for a submission");
      Mine(next).sending = 0;
      ++Mine(next).sent;
      Submitted(&next, Call(self_, me.sent), self_);
    }
  }

  void Read(const Rank& me, int member) {
    const int index = me.read[member];
    const int entry = index % setup_.submission_ring;
    const int ready =
        Newest(state_->rank[member].sent, entry, setup_.submission_ring);
    if (ready <= index) return;
    Expect(ready, index + 1, "the doorbell of submission");
    const int found = Has(Fault::kSubmissionAcquire)
                          ? ready - setup_.submission_ring
                          : state_->submission[member][entry];
    Expect(found, index + 1, "submission");
    State& next = Add(me.acquired[member] ? "reads a submission"
                                          : "acquires a submission");
    Mine(next).acquired[member] ^= 1;
    if (!me.acquired[member]) return;
    ++Mine(next).read[member];
    Submitted(&next, Call(member, index), member);
  }

  // How many announced calls all others have left behind.
  int LeftBehind() const {
    int left = 0, rounds = 0;
    for (; left < state_->rank[0].ordered; ++left) {
      rounds += static_cast<int>(PlanOf(state_->order[left], 0).rounds);
      for (int m = 1; m < setup_.ranks; ++m)
        if (state_->rank[m].released < rounds) return left;
    }
    return left;
  }

  void Announce(const Rank& me) {
    if (me.ordering == 1) {
      State& next = Add("publishes an announcement");
      Mine(next).ordering = 2;
      if (!Has(Fault::kAnnouncementPublish))
        next.announcement[me.ordered % setup_.announcement_ring] =
            me.ordered + 1;
    } else if (me.ordering == 2) {
      State& next = Add("rings for an announcement");
      Mine(next).ordering = 0;
      Mine(next).current = state_->order[me.ordered] + 1;
      ++Mine(next).ordered;
    } else if (Has(Fault::kAnnouncementWait) ||
               me.ordered < setup_.announcement_ring + LeftBehind()) {
      for (size_t call = 0; call < setup_.calls.size(); ++call) {
        if (Eager(call) || me.here[call] != everyone_ || IsOrdered(call))
          continue;
        State& next = Add("stores an announcement");
        Mine(next).ordering = 1;
        next.order[me.ordered] = static_cast<uint8_t>(call);
      }
    }
  }
  bool IsOrdered(size_t call) const {
    return std::find(state_->order, state_->order + state_->rank[0].ordered,
                     call) != state_->order + state_->rank[0].ordered;
  }

  void Follow(const Rank& me) {
    const int entry = me.ordered % setup_.announcement_ring;
    const int ready =
        Newest(state_->rank[0].ordered, entry, setup_.announcement_ring);
    if (ready <= me.ordered) return;
    Expect(ready, me.ordered + 1, "the doorbell of announcement");
    const int found = Has(Fault::kAnnouncementAcquire)
                          ? ready - setup_.announcement_ring
                          : state_->announcement[entry];
    Expect(found, me.ordered + 1, "announcement");
    State& next =
        Add(me.ordering ? "reads an announcement" : "acquires an announcement");
    Mine(next).ordering ^= 1;
    if (!me.ordering) return;
    const int call = state_->order[me.ordered];
    if ((me.here[call] & Bit(self_)) == 0)
      wrong_ = "a rank is told to execute a call that it has not submitted";
    Mine(next).current = static_cast<uint8_t>(call + 1);
    ++Mine(next).ordered;
  }

  // The peer that the step waits for, -1: none.
  int Blocker(const Rank& me, const plan::Step& step) const {
    const int round = me.rounds + static_cast<int>(step.round);
    const auto unpublished = [&](int m) {
      return m != self_ && state_->rank[m].published <= round;
    };
    if (step.kind == plan::StepKind::kPut && !Has(Fault::kReleasedWait)) {
      for (int m = 0; m < setup_.ranks; ++m)
        if (m != self_ && state_->rank[m].released + setup_.num_slots <= round)
          return m;
    }
    if (Has(Fault::kPublishedWait)) return -1;
    if (step.kind == plan::StepKind::kGet && unpublished(step.peer))
      return step.peer;
    if (step.kind == plan::StepKind::kReduce) {
      for (int m = step.first; m < step.last; ++m)
        if (unpublished(m)) return m;
    }
    return -1;
  }

  void Execute(const Rank& me) {
    const int call = me.current - 1;
    const plan::Plan& plan = PlanOf(call, self_);
    if (me.step == plan.steps.size()) {
      State& next = Add("finishes a call");
      Rank& mine = Mine(next);
      mine.done |= Bit(call);
      mine.rounds += plan.rounds;
      mine.current = mine.step = 0;
      return;
    }
    const plan::Step& step = plan.steps[me.step];
    if (me.part == 0 && Blocker(me, step) >= 0) return;
    const int round = me.rounds + static_cast<int>(step.round);
    switch (step.kind) {
      case plan::StepKind::kPut:
        if (me.part == 0) {
          State& next = Add("stores into a slot");
          Mine(next).part = 1;
          Mine(next).put = round + 1;
        } else {
          State& next = Add("publishes a slot");
          Next(&next);
          if (!Has(Fault::kSlotPublish))
            next.slot[self_][round % setup_.num_slots] = round + 1;
        }
        break;
      case plan::StepKind::kPublish: {
        State& next = Add("rings for a slot");
        Next(&next);
        Mine(next).published = round + 1;
        break;
      }
      case plan::StepKind::kGet:
        Retrieve(
            me,
            step.bytes > 0 ? std::vector<int>{step.peer} : std::vector<int>(),
            round);
        break;
      case plan::StepKind::kReduce: {
        std::vector<int> sources;
        for (int m = step.first; m < step.last; ++m)
          if (m != self_) sources.push_back(m);
        Retrieve(me, sources, round);
        break;
      }
      case plan::StepKind::kRelease: {
        State& next = Add("releases a slot");
        Next(&next);
        Mine(next).released = std::max<int>(me.released, round + 1);
        break;
      }
      case plan::StepKind::kCopy:
      case plan::StepKind::kZero:
        Next(&Add("copies"));
        break;
      default:
        wrong_ = "the model does not know the plan's steps";
    }
  }

  void Next(State* next) const {
    ++Mine(*next).step;
    Mine(*next).part = 0;
  }

  // Acquires the slots of `sources`, then reads them.
  void Retrieve(const Rank& me, const std::vector<int>& sources, int round) {
    for (size_t i = 0; i < sources.size() && i <= me.part; ++i) {
      const int entry = round % setup_.num_slots;
      Expect(Has(Fault::kSlotAcquire) ? round + 1 - setup_.num_slots
                                      : state_->slot[sources[i]][entry],
             round + 1, "round");
    }
    State& next =
        Add(me.part < sources.size() ? "acquires a slot" : "reads slots");
    if (Has(Fault::kReleaseAfterReading)) Mine(next).released = round + 1;
    if (me.part < sources.size())
      ++Mine(next).part;
    else
      Next(&next);
  }

  // As Channel::WaitingFor and Negotiation::WaitingFor.
  std::vector<int> WaitingFor(const Rank& me) const {
    if (me.current > 0) {
      const plan::Plan& plan = PlanOf(me.current - 1, self_);
      if (me.step == plan.steps.size()) return {};
      const int peer = Blocker(me, plan.steps[me.step]);
      return peer < 0 ? std::vector<int>() : std::vector<int>{peer};
    }
    std::vector<int> others;
    for (int m = 0; m < setup_.ranks; ++m)
      if (m != self_) others.push_back(m);
    for (int call : setup_.orders[self_]) {
      if ((me.done & Bit(call)) != 0) continue;
      std::vector<int> missing;
      for (int m : others)
        if ((me.here[call] & Bit(m)) == 0) missing.push_back(m);
      if (!Has(Fault::kBlame) && me.sent < setup_.calls.size()) {
        for (int m : RingHolders(me)) missing.push_back(m);
      }
      if (!missing.empty()) return missing;
      if (!Has(Fault::kBlame) && self_ == 0) return others;
      return self_ == 0 ? std::vector<int>() : std::vector<int>{0};
    }
    return {};
  }

  void Watch(const Rank& me) {
    for (int m : WaitingFor(me)) {
      if (state_->rank[m].life != kDead) continue;
      Mine(Add("misses a peer")).life = kGivingUp;
      break;
    }
    for (int m = 0; m < setup_.ranks; ++m) {
      const Rank& peer = state_->rank[m];
      if (m == self_ || peer.abort < 3) continue;
      if (!peer.reason_in_pool) wrong_ = "a peer's reason is not there";
      Mine(Add("sees that a peer gave up")).life = kGivingUp;
      break;
    }
  }

  void GiveUp() {
    State& next = Add("gives up");
    Rank& mine = Mine(next);
    if (Has(Fault::kAbort)) {
      mine.life = kGaveUp;
      return;
    }
    ++mine.abort;
    if (mine.abort == 2 && !Has(Fault::kAbortPublish)) mine.reason_in_pool = 1;
    if (mine.abort == 3) mine.life = kGaveUp;
  }

  // A cache may write back a line at any time.
  void Evict(const State& state) {
    const Rank& me = state.rank[self_];
    const auto evict = [&](auto place, int stored, int ring) {
      for (int i = 0; i < ring; ++i) {
        const int newest = Newest(stored, i, ring);
        if (place(state)[i] == newest) continue;
        State& next = Add("loses a line");
        const_cast<uint8_t*>(place(next))[i] = static_cast<uint8_t>(newest);
      }
    };
    evict([&](const State& s) { return s.submission[self_]; },
          me.sent + (me.sending > 0), setup_.submission_ring);
    evict([&](const State& s) { return s.slot[self_]; }, me.put,
          setup_.num_slots);
    if (self_ == 0)
      evict([&](const State& s) { return s.announcement; },
            me.ordered + (me.ordering > 0 && me.current == 0),
            setup_.announcement_ring);
    if (me.abort > 0 && !me.reason_in_pool)
      Mine(Add("loses a line")).reason_in_pool = 1;
  }

  // No rank can do anything more.
  void CheckEnd(const State& state) {
    for (int r = 0; r < setup_.ranks; ++r) {
      const Rank& rank = state.rank[r];
      const bool finished = rank.done == all_;
      if (rank.life == kDead || finished) continue;
      if (rank.life == kGaveUp && state.crashes > 0) continue;
      wrong_ = "rank " + std::to_string(r) +
               (rank.life == kGaveUp ? " gives up though nobody died"
                                     : " waits for ever");
    }
  }

  Configuration setup_;
  uint8_t all_;
  uint8_t everyone_;
  const State* state_ = nullptr;
  int self_ = 0;
  std::vector<Move>* moves_ = nullptr;
  std::string wrong_;
};

}  // namespace jax_cxl::comm::model

#endif  // JAX_CXL_COMM_PROTOCOL_MODEL_TESTING_H_
