#ifndef JAX_CXL_TESTING_MODELS_MEMORY_MODEL_H_
#define JAX_CXL_TESTING_MODELS_MEMORY_MODEL_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "cc/testing/models/protocol_model_search.h"

// A model of how ranks give the memory of a group to another group
// (cc/pool/layout/channel_layout.h). It tries every order of every step.
//
// Every rank has one block, and is a member of several groups. It makes the
// calls of its groups in one order. All calls are eager: a rank submits a call,
// and has finished the call when it has read the submissions of all members.
// Unlike in protocol_model.h, stores reach the pool at once. But a reader may
// see a doorbell long before it reads the message that the doorbell announces.
namespace jax_cxl::comm::memory_model {

// What is wrong in a broken variant of the model.
enum class Fault : uint8_t {
  kNone,
  kFinishedWait,  // a rank does not ask what the others have finished
  kFirst,         // words of the next group start from 0
  kWholeRing,     // they continue without a gap
  kVersion,       // the entry of the directory stays open
  kFollowMoves,   // a rank never looks for a block that has moved
  kEnded          // a rank waits for a step of a dead rank
};
inline constexpr std::string_view kFaultNames[] = {
    "Nothing", "FinishedWait", "First", "WholeRing",
    "Version", "FollowMoves",  "Ended"};

inline constexpr int kMaxRanks = 3;
inline constexpr int kMaxGroups = 3;
inline constexpr int kRing = 2;

struct Configuration {
  int ranks = 2;
  std::vector<uint8_t> groups;  // one bit for each member
  std::vector<int> calls;       // the group of each call
  int crashes = 1;
  Fault fault = Fault::kNone;
};

// What a rank knows about a group, whether or not the group has memory at the
// moment.
struct Channel {
  // Numbers of calls of the group: submitted, finished, and read from each
  // member.
  uint8_t sent;
  uint8_t done;
  uint8_t read[kMaxRanks];
  // The known blocks of the other members. Version 0: not found yet.
  uint8_t version[kMaxRanks];
  uint8_t first[kMaxRanks];
};

struct Rank {
  uint8_t dead;
  uint8_t call;  // the call that the rank is in
  uint8_t seen;  // member + 1: has seen its doorbell, and not read its message
  // The words of the rank in the pool:
  uint8_t version;
  uint8_t group;  // + 1, 0: none
  uint8_t first;
  uint8_t most;  // the largest value of a word
  uint8_t finished;
  uint8_t ready[kRing];
  uint8_t message[kRing];
  Channel channels[kMaxGroups];
};

struct State {
  Rank rank[kMaxRanks];
  uint8_t crashes;
};

class Model {
 public:
  using State = memory_model::State;

  explicit Model(Configuration setup) : setup_(std::move(setup)) {}

  std::string Moves(const State& state,
                    std::vector<model::Transition<State>>* moves) const {
    Step step{setup_, state, moves, ""};
    for (int r = 0; r < setup_.ranks; ++r)
      if (state.rank[r].dead == 0) Act(step, r);
    if (moves->empty() && state.crashes == 0)
      for (int r = 0; r < setup_.ranks; ++r)
        if (NextCall(state.rank[r].call, r) < setup_.calls.size())
          step.Wrong("waits forever", r);
    if (moves->empty() && state.crashes > 0) CheckWaits(step);
    if (state.crashes < setup_.crashes)
      for (int r = 0; r < setup_.ranks; ++r)
        if (state.rank[r].dead == 0) {
          State& next = step.Add(r, "dies");
          next.rank[r].dead = 1;
          ++next.crashes;
        }
    return step.wrong;
  }

 private:
  struct Step {
    const Configuration& setup;
    const State& state;
    std::vector<model::Transition<State>>* moves;
    std::string wrong;

    State& Add(int rank, const char* what) {
      moves->push_back({rank, what, state});
      return moves->back().next;
    }
    void Wrong(const std::string& what, int rank) {
      if (wrong.empty()) wrong = "rank " + std::to_string(rank) + " " + what;
    }
    bool Has(Fault fault) const { return setup.fault == fault; }
  };

  bool IsMember(int rank, int group) const {
    return (setup_.groups[group] >> rank & 1) != 0;
  }
  size_t NextCall(size_t call, int rank) const {
    while (call < setup_.calls.size() && !IsMember(rank, setup_.calls[call]))
      ++call;
    return call;
  }
  static uint8_t Count(int value, int first) {
    return static_cast<uint8_t>(std::max(0, value - first));
  }
  static void Ring(Rank* rank, uint8_t* word, int count) {
    *word = static_cast<uint8_t>(rank->first + count);
    rank->most = std::max(rank->most, *word);
  }

  void Act(Step& step, int r) const {
    const Rank& me = step.state.rank[r];
    const size_t call = NextCall(me.call, r);
    if (call == setup_.calls.size()) return;
    const int group = setup_.calls[call];
    if (me.group != group + 1) return Open(step, r, group);
    const Channel& channel = me.channels[group];
    if (channel.sent == channel.done) {
      State& next = step.Add(r, "submits a call");
      Rank& mine = next.rank[r];
      const int at = channel.sent % kRing;
      mine.message[at] = static_cast<uint8_t>(call + 1);
      Ring(&mine, &mine.ready[at], ++mine.channels[group].sent);
      return;
    }
    bool all = true;
    for (int m = 0; m < setup_.ranks; ++m) {
      if (m == r || !IsMember(m, group)) continue;
      if (channel.read[m] == channel.sent) continue;
      all = false;
      ReadFrom(step, r, m, group, call);
    }
    if (!all) return;
    Rank& mine = step.Add(r, "finishes the call").rank[r];
    mine.call = static_cast<uint8_t>(call + 1);
    Ring(&mine, &mine.finished, ++mine.channels[group].done);
  }

  // Models Channels::TakeMemory, Channel::Close and Channel::Open.
  void Open(Step& step, int r, int group) const {
    const Rank& me = step.state.rank[r];
    if (me.group != 0) {
      if (!CanClose(step, r, me.group - 1)) return;
      Rank& mine = step.Add(r, "closes its block").rank[r];
      mine.group = 0;
      if (!step.Has(Fault::kVersion)) ++mine.version;
      const int gap = step.Has(Fault::kWholeRing) ? 0 : kRing + 1;
      mine.first =
          static_cast<uint8_t>(step.Has(Fault::kFirst) ? 0 : me.most + gap);
      return;
    }
    Rank& mine = step.Add(r, "opens its block").rank[r];
    mine.group = static_cast<uint8_t>(group + 1);
    if (!step.Has(Fault::kVersion) || mine.version == 0) ++mine.version;
  }

  // Models Channel::CanClose.
  bool CanClose(const Step& step, int r, int group) const {
    if (step.Has(Fault::kFinishedWait)) return true;
    const Channel& channel = step.state.rank[r].channels[group];
    for (int m = 0; m < setup_.ranks; ++m) {
      if (m == r || !IsMember(m, group)) continue;
      const Rank& peer = step.state.rank[m];
      if (Count(peer.finished, channel.first[m]) >= channel.done) {
        continue;
      }
      if (peer.dead == 0 || step.Has(Fault::kEnded)) return false;
    }
    return true;
  }

  // Models Connection::FollowMoves, and Submissions::Peek.
  void ReadFrom(Step& step, int r, int m, int group, size_t call) const {
    const Rank& me = step.state.rank[r];
    const Rank& peer = step.state.rank[m];
    const Channel& channel = me.channels[group];
    const bool open = peer.group == group + 1;
    if (me.seen == m + 1) {
      const int number = channel.read[m];
      if (peer.message[number % kRing] != call + 1)
        step.Wrong("reads a message of another call", r);
      Rank& mine = step.Add(r, "reads a submission").rank[r];
      ++mine.channels[group].read[m];
      mine.seen = 0;
      return;
    }
    if (open && channel.version[m] != peer.version &&
        (channel.version[m] == 0 || !step.Has(Fault::kFollowMoves))) {
      Rank& mine = step.Add(r, "finds a block").rank[r];
      mine.channels[group].version[m] = peer.version;
      mine.channels[group].first[m] = peer.first;
    }
    if (channel.version[m] == 0 || me.seen != 0) return;
    const int number = channel.read[m];
    const int ready = Count(peer.ready[number % kRing], channel.first[m]);
    if (ready > number + 1 && channel.version[m] == peer.version)
      step.Wrong("takes the memory of another group for damaged", r);
    if (ready != number + 1) return;
    step.Add(r, "sees a doorbell").rank[r].seen = static_cast<uint8_t>(m + 1);
  }

  // Checks that each rank that has not ended waits for a dead rank, or for a
  // rank that in turn waits for a dead one.
  void CheckWaits(Step& step) const {
    std::vector<bool> excused(setup_.ranks);
    for (int r = 0; r < setup_.ranks; ++r)
      excused[r] = step.state.rank[r].dead != 0;
    for (int pass = 0; pass < setup_.ranks; ++pass)
      for (int r = 0; r < setup_.ranks; ++r) {
        const size_t call = NextCall(step.state.rank[r].call, r);
        if (call == setup_.calls.size()) continue;
        const int groups[] = {setup_.calls[call], step.state.rank[r].group - 1};
        for (int group : groups)
          for (int m = 0; group >= 0 && m < setup_.ranks; ++m)
            if (IsMember(m, group) && m != r && excused[m] &&
                (group == groups[0] || step.state.rank[m].dead == 0))
              excused[r] = true;
      }
    for (int r = 0; r < setup_.ranks; ++r)
      if (!excused[r] &&
          NextCall(step.state.rank[r].call, r) < setup_.calls.size())
        step.Wrong("waits for a rank that lives", r);
  }

  Configuration setup_;
};

}  // namespace jax_cxl::comm::memory_model

#endif  // JAX_CXL_TESTING_MODELS_MEMORY_MODEL_H_
