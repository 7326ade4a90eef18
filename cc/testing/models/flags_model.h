#ifndef JAX_CXL_TESTING_MODELS_FLAGS_MODEL_H_
#define JAX_CXL_TESTING_MODELS_FLAGS_MODEL_H_

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "cc/testing/models/flags_model_state.h"
#include "cc/testing/models/protocol_model_search.h"

// A model of short messages between GPUs (engine/cuda/flagged/flagged.h). It
// includes words with data and a flag, words that name the call of a rank, and
// words that count released rounds. It also includes how ranks clear (wipe)
// their slots before flags start again.
//
// A stored word arrives in the pool later, and is never torn. Words may arrive
// in any order, except that words for the same place arrive in the order of
// their stores. A reader sees what has arrived. The threads of a kernel do
// their parts of a call in any order. A rank may die or give up between any two
// steps, and its stores still arrive. Other ranks know at once who has given up
// (protocol_model.h models how).
namespace jax_cxl::comm::flags_model {

class Model {
 public:
  using State = flags_model::State;
  using Transition = model::Transition<State>;

  explicit Model(Configuration setup) : setup_(std::move(setup)) {
    for (size_t call = 0; call < setup_.calls.size();) {
      const bool wipe =
          !Has(Fault::kWipe) && (rounds_.size() + 1) % setup_.flags == 0;
      rounds_.push_back(wipe ? nullptr : &setup_.calls[call++]);
    }
  }
  Model(const Model& other) : Model(other.setup_) {}

  // As model::Explore requires: appends all steps from `state` to `moves`, and
  // returns the fault of the state.
  std::string Moves(const State& state, std::vector<Transition>* moves) {
    state_ = &state;
    moves_ = moves;
    wrong_.clear();
    for (self_ = 0; self_ < setup_.ranks; ++self_) {
      if (me().life != kLive || Done(self_)) continue;
      if (rounds_[me().round] == nullptr)
        Wipe();
      else
        RunCall(*rounds_[me().round]);
      Watch();
    }
    for (self_ = 0; self_ < setup_.ranks && moves->empty(); ++self_) CheckEnd();
    for (self_ = 0; self_ < setup_.ranks; ++self_) {
      Arrive();
      AddFailures();
    }
    return wrong_;
  }

 private:
  bool Has(Fault fault) const { return setup_.fault == fault; }
  const Rank& me() const { return state_->rank[self_]; }
  bool Done(int rank) const {
    return state_->rank[rank].round == rounds_.size();
  }
  static uint8_t Bit(int i) { return static_cast<uint8_t>(1 << i); }
  static uint8_t Words(const FlagsCall& call) { return Bit(call.words) - 1; }
  // Returns the other ranks whose data `rank` gets, one bit each.
  static uint8_t Sources(const FlagsCall& call, int rank) {
    return call.writers & ~Bit(rank);
  }
  static bool Same(const FlagsCall& call, int one, int other) {
    return call.kind.empty() || call.kind[one] == call.kind[other];
  }
  int LeastReleased() const {
    int least = 255;
    for (int m = 0; m < setup_.ranks; ++m)
      if (m != self_) least = std::min<int>(least, state_->rank[m].released);
    return least;
  }
  int MostReleased() const {
    int most = 0;
    for (int m = 0; m < setup_.ranks; ++m)
      if (m != self_) most = std::max<int>(most, state_->rank[m].released);
    return most;
  }

  State& Add(const char* what) {
    moves_->push_back({self_, what, *state_});
    return moves_->back().next;
  }
  Rank& Mine(State& next) const { return next.rank[self_]; }
  void Wrong(const std::string& what) {
    if (wrong_.empty()) wrong_ = "rank " + std::to_string(self_) + " " + what;
  }

  // Returns how many rounds all others must have released before this rank
  // stores anything in its current round.
  int Needed() const {
    if (rounds_[me().round] == nullptr)
      return me().wiped < 2 ? (Has(Fault::kWipeWait) ? 0 : me().round)
                            : (Has(Fault::kMeeting) ? 0 : me().round + 1);
    if (Has(Fault::kReleasedWait) || me().round + 1 <= me().noted + kRing)
      return 0;
    return me().round + 1 - kRing;
  }

  void Wipe() {
    if (LeastReleased() < Needed()) return;
    if (me().wiped == 0) {
      State& next = Add("wipes its ring");
      Mine(next).wiped = 1;
      for (auto& slot : next.data[self_])
        for (Word& word : slot)
          word.on_its_way = word.in_pool + word.on_its_way > 0 ? 1 : 0;
    } else if (me().wiped == 1) {
      for (const auto& slot : state_->data[self_])
        for (const Word& word : slot)
          if (word.on_its_way > 0) return;  // the fence
      State& next = Add("releases what it wiped");
      Mine(next).wiped = 2;
      Mine(next).released = me().round + 1;
    } else {
      NextRound(&Add("goes on after a wipe"));
    }
  }

  void NextRound(State* next) {
    Rank& mine = Mine(*next);
    ++mine.round;
    mine.wiped = mine.said = mine.put = mine.seen = 0;
    std::fill(mine.got, mine.got + kMaxRanks, 0);
  }

  void RunCall(const FlagsCall& call) {
    const bool free = LeastReleased() >= Needed();
    if (me().said == 0 && (free || Has(Fault::kCallBehindSlot))) {
      State& next = Add("says what it calls");
      Mine(next).said = 1;
      next.call[self_][me().round % kRing].on_its_way = me().round + 2;
    }
    if (!free) return;
    if ((call.writers & Bit(self_)) != 0) Put(call);
    bool all = me().said != 0 &&
               ((call.writers & Bit(self_)) == 0 || me().put == Words(call));
    for (int m = 0; m < setup_.ranks; ++m) {
      if ((Sources(call, self_) & Bit(m)) == 0) continue;
      Get(call, m);
      See(call, m);
      all &= me().got[m] == Words(call) &&
             (Has(Fault::kCallWait) || (me().seen & Bit(m)) != 0);
    }
    const int noted =
        Has(Fault::kLeastReleased) ? MostReleased() : LeastReleased();
    if (noted > me().noted) Mine(Add("notes releases")).noted = noted;
    if (Has(Fault::kReleaseAfterReading) && me().released <= me().round)
      Mine(Add("releases early")).released = me().round + 1;
    if (!all) return;
    for (int m = 0; m < setup_.ranks; ++m)
      if ((Sources(call, self_) & Bit(m)) != 0 && !Same(call, self_, m))
        Wrong("ends with the data of another call");
    State& next = Add("releases a round");
    Mine(next).released = me().round + 1;
    // All from which this rank has data have begun this round, so they have
    // read all earlier rounds.
    const uint8_t others = (Bit(setup_.ranks) - 1) & ~Bit(self_);
    if (Sources(call, self_) == others ||
        (Has(Fault::kHeardAll) && Sources(call, self_) != 0))
      Mine(next).noted = std::max<int>(
          me().noted, me().round + (Has(Fault::kThisRound) ? 1 : 0));
    NextRound(&next);
  }

  void Put(const FlagsCall& call) {
    for (int w = 0; w < call.words; ++w) {
      if ((me().put & Bit(w)) != 0) continue;
      State& next = Add("puts a word");
      Mine(next).put |= Bit(w);
      next.data[self_][me().round % kRing][w].on_its_way = me().round + 2;
    }
  }

  void Get(const FlagsCall& call, int member) {
    const int round = me().round;
    for (int w = 0; w < call.words; ++w) {
      const int found = state_->data[member][round % kRing][w].in_pool;
      if ((me().got[member] & Bit(w)) != 0) continue;
      if (!Has(Fault::kFlag) &&
          found % setup_.flags != (round + 1) % setup_.flags)
        continue;
      if (found != round + 1)
        Wrong("takes a word of round " + std::to_string(found - 1) +
              " for one of round " + std::to_string(round));
      Mine(Add("gets a word")).got[member] |= Bit(w);
    }
  }

  void See(const FlagsCall& call, int member) {
    const int found = state_->call[member][me().round % kRing].in_pool;
    if ((me().seen & Bit(member)) != 0 || found != me().round + 1 ||
        Has(Fault::kCallWait))
      return;
    if (Same(call, self_, member))
      Mine(Add("sees a peer's call")).seen |= Bit(member);
    else
      Mine(Add("finds another call")).life = kGaveUp;
  }

  // Called when a word of round `old` is overwritten. Checks that all live
  // ranks that need the word have read it.
  void Overwrite(int old, const char* what, auto has_read) {
    const FlagsCall* call = old == 0 ? nullptr : rounds_[old - 1];
    for (int m = 0; call != nullptr && m < setup_.ranks; ++m) {
      const Rank& reader = state_->rank[m];
      if (reader.life == kLive && (Sources(*call, m) & Bit(self_)) != 0 &&
          (reader.round < old - 1 ||
           (reader.round == old - 1 && !has_read(reader))))
        Wrong(std::string("overwrites ") + what + " that rank " +
              std::to_string(m) + " has yet to read");
    }
  }

  void Arrive() {
    for (int slot = 0; slot < kRing; ++slot) {
      for (int w = 0; w < kMaxWords; ++w) {
        const Word& word = state_->data[self_][slot][w];
        if (word.on_its_way == 0) continue;
        Overwrite(word.in_pool, "data", [&](const Rank& reader) {
          return (reader.got[self_] & Bit(w)) != 0;
        });
        Add("has a word arrive").data[self_][slot][w] = {
            static_cast<uint8_t>(word.on_its_way - 1), 0};
      }
      const Word& word = state_->call[self_][slot];
      if (word.on_its_way == 0) continue;
      if (!Has(Fault::kCallWait))
        Overwrite(word.in_pool, "a call", [&](const Rank& reader) {
          return (reader.seen & Bit(self_)) != 0;
        });
      Add("has its call arrive").call[self_][slot] = {
          static_cast<uint8_t>(word.on_its_way - 1), 0};
    }
  }

  // Returns true if the rank waits for a word of `member`.
  bool WaitsFor(int member) const {
    const Rank& peer = state_->rank[member];
    if (peer.released < Needed()) return true;
    const FlagsCall* call = rounds_[me().round];
    return call != nullptr && (Sources(*call, self_) & Bit(member)) != 0 &&
           (me().got[member] != Words(*call) || (me().seen & Bit(member)) == 0);
  }

  void Watch() {
    for (int m = 0; m < setup_.ranks; ++m) {
      const Rank& peer = state_->rank[m];
      if (m == self_) continue;
      if (peer.life == kGaveUp || (peer.life == kDead && WaitsFor(m))) {
        Mine(Add("gives up with a peer")).life = kGaveUp;
        return;
      }
    }
  }

  // Adds the failures that a rank may have at any time: it dies or times out.
  void AddFailures() {
    if (me().life != kLive || Done(self_)) return;
    if (state_->crashes < setup_.crashes) {
      State& next = Add("dies");
      Mine(next).life = kDead;
      ++next.crashes;
    }
    if (state_->timeouts < setup_.timeouts) {
      State& next = Add("times out");
      Mine(next).life = kGaveUp;
      ++next.timeouts;
    }
  }

  // Called for each rank of a state in which no rank can do a step. If no
  // stored word can still arrive, checks that this rank has ended as it should.
  void CheckEnd() {
    for (int m = 0; m < setup_.ranks; ++m) {
      for (const auto& slot : state_->data[m])
        for (const Word& word : slot)
          if (word.on_its_way > 0) return;
      for (const Word& word : state_->call[m])
        if (word.on_its_way > 0) return;
    }
    if (me().life == kDead || Done(self_)) return;
    const bool agree = std::ranges::all_of(
        setup_.calls, [](const FlagsCall& call) { return call.kind.empty(); });
    if (me().life == kLive)
      Wrong("waits forever");
    else if (state_->crashes == 0 && state_->timeouts == 0 && agree)
      Wrong("gives up though nothing happened");
  }

  Configuration setup_;
  std::vector<const FlagsCall*> rounds_;  // null: a wipe
  const State* state_ = nullptr;
  int self_ = 0;
  std::vector<Transition>* moves_ = nullptr;
  std::string wrong_;
};

}  // namespace jax_cxl::comm::flags_model

#endif  // JAX_CXL_TESTING_MODELS_FLAGS_MODEL_H_
