#ifndef JAX_CXL_TESTING_MODELS_PROTOCOL_MODEL_H_
#define JAX_CXL_TESTING_MODELS_PROTOCOL_MODEL_H_

#include <string>
#include <utility>
#include <vector>

#include "cc/testing/models/protocol_model_giving_up.h"
#include "cc/testing/models/protocol_model_negotiation.h"
#include "cc/testing/models/protocol_model_plans.h"
#include "cc/testing/models/protocol_model_search.h"
#include "cc/testing/models/protocol_model_turn.h"

// A model of how the ranks of a group communicate. It is small enough to try
// every order of every step (protocol_model_search.h). Each part has its own
// file:
//
//   submissions   rings of submissions, and the words that count what was read
//   negotiation   calls in any order: eager calls, announcements, and
//                 ranks that disagree about a call
//   plans         slots, doorbells and releases, in the order of real plans
//   giving_up     deaths, timeouts, ranks that leave
//
// Memory is not coherent. A payload is the number of its message. A store
// reaches the pool when it is published, or earlier if its line is evicted. A
// reader drops the line of a payload before it reads the payload. In between,
// the cache may fetch the line at any time. Flags are 8 bytes. Stores and loads
// of flags go directly to the pool.
//
// If a rank can do several steps next, the model tries each of them. The real
// code does them in one of these orders. A rank may die or give up between any
// two steps. A rank that is done takes no more steps.
//
// The model does not include the opening of channels. Flags of short messages
// between GPUs have their own model (flags_model.h).
namespace jax_cxl::comm::model {

class Model {
 public:
  using State = model::State;

  explicit Model(Configuration setup) : setup_(std::move(setup)) {}

  // Start and Moves are what Explore requires.
  void Start(State* state) const {
    if (!setup_.announced) return;
    for (int r = 0; r < setup_.ranks; ++r) {
      Rank& rank = state->rank[r];
      rank.sent = state->submission[r][0] = 1;
      for (int m = 0; m < setup_.ranks; ++m) rank.read[m] = m != r;
      rank.here[0] = static_cast<uint8_t>((1 << setup_.ranks) - 1);
      rank.ordered = rank.current = 1;
    }
    state->announcement[0] = 1;
  }
  std::string Moves(const State& state,
                    std::vector<Transition<State>>* moves) const {
    std::string wrong;
    const auto each = [&](auto part) {
      for (int r = 0; r < setup_.ranks && wrong.empty(); ++r) {
        Turn turn(setup_, state, r, moves, &wrong);
        part(turn);
      }
    };
    each([](Turn& turn) { Act(turn); });
    if (moves->empty()) each([](Turn& turn) { CheckEnd(turn); });
    each([](Turn& turn) { Evict(turn); });
    each([](Turn& turn) { AddFailures(turn); });
    return wrong;
  }

 private:
  static void Act(Turn& turn) {
    const Rank& me = turn.me;
    const size_t before = turn.moves();
    if (me.life == kGivingUp) GiveUp(turn);
    if (me.life != kLive || me.done == turn.all_calls()) return;
    ExchangeSubmissions(turn);
    if (me.current > 0)
      Execute(turn);
    else
      turn.self == 0 ? Announce(turn) : Follow(turn);
    Watch(turn, turn.moves() == before);
  }

  // Adds steps in which the rank's cache writes back a line, which it may do at
  // any time.
  static void Evict(Turn& turn) {
    const Rank& me = turn.me;
    const auto evict = [&](auto place, int stored) {
      if (place(turn.state) == stored) return;
      State& next = turn.Add("loses a line");
      const_cast<uint8_t&>(place(next)) = static_cast<uint8_t>(stored);
    };
    const int submissions = turn.setup.submission_ring;
    for (int i = 0; i < submissions; ++i)
      evict([&](const State& s) -> auto& { return s.submission[turn.self][i]; },
            Newest(me.sent + (me.sending > 0), i, submissions));
    for (int i = 0; i < turn.setup.num_slots; ++i)
      for (int p = 0; p < turn.setup.parts; ++p)
        evict([&](const State& s) -> auto& { return s.slot[turn.self][i][p]; },
              me.stored[i][p]);
    const int announcements = turn.setup.announcement_ring;
    for (int i = 0; turn.self == 0 && i < announcements; ++i)
      evict([&](const State& s) -> auto& { return s.announcement[i]; },
            Newest(me.ordered + (me.ordering > 0 && me.current == 0), i,
                   announcements));
    if (me.abort > 0)
      evict(
          [&](const State& s) -> auto& {
            return s.rank[turn.self].reason_in_pool;
          },
          1);
  }

  Configuration setup_;
};

}  // namespace jax_cxl::comm::model

#endif  // JAX_CXL_TESTING_MODELS_PROTOCOL_MODEL_H_
