#ifndef JAX_CXL_TESTING_MODELS_PROTOCOL_MODEL_TURN_H_
#define JAX_CXL_TESTING_MODELS_PROTOCOL_MODEL_TURN_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "cc/plan/plan.h"
#include "cc/testing/models/protocol_model_search.h"
#include "cc/testing/models/protocol_model_state.h"

namespace jax_cxl::comm::model {

// One rank in one state: what the rank sees, and its possible next steps. The
// parts of the model are functions of a Turn.
class Turn {
 public:
  Turn(const Configuration& setup, const State& state, int self,
       std::vector<Transition<State>>* moves, std::string* wrong)
      : setup(setup),
        state(state),
        self(self),
        me(state.rank[self]),
        moves_(moves),
        wrong_(wrong) {}

  const Configuration& setup;
  const State& state;
  const int self;
  const Rank& me;

  bool Has(Fault fault) const { return setup.fault == fault; }
  static uint8_t Bit(int i) { return static_cast<uint8_t>(1 << i); }
  uint8_t everyone() const {
    return static_cast<uint8_t>((1 << setup.ranks) - 1);
  }
  uint8_t all_calls() const {
    return static_cast<uint8_t>((1 << setup.calls.size()) - 1);
  }
  int CallAt(int rank, int index) const { return setup.orders[rank][index]; }
  const plan::Plan& PlanOf(int call, int rank) const {
    return setup.calls[call].plans[rank];
  }
  // Returns true if `member` agrees with this rank about what `call` is.
  bool SameCall(int member, int call) const {
    return setup.kinds.empty() ||
           setup.kinds[member][call] == setup.kinds[self][call];
  }
  // Call it before this rank reads data of `member` in `call`.
  void CheckSameCall(int member, int call) {
    if (!SameCall(member, call)) Wrong("reads data of another call");
  }
  // Returns true if the call is eager. It is enough to look at one plan: either
  // the plans of all ranks have steps, or none has.
  bool Eager(int call) const { return setup.calls[call].plans[0].rounds == 0; }

  // Adds a possible step. The caller changes the returned state.
  State& Add(const char* what) {
    moves_->push_back({self, what, state});
    return moves_->back().next;
  }
  size_t moves() const { return moves_->size(); }
  Rank& Mine(State& next) const { return next.rank[self]; }

  void Wrong(const std::string& what) {
    if (wrong_->empty()) *wrong_ = "rank " + std::to_string(self) + " " + what;
  }
  void Expect(int found, int expected, const char* what) {
    if (found != expected)
      Wrong(std::string("reads ") + what + " " + std::to_string(found) +
            " in place of " + std::to_string(expected));
  }

 private:
  std::vector<Transition<State>>* moves_;
  std::string* wrong_;
};

}  // namespace jax_cxl::comm::model

#endif  // JAX_CXL_TESTING_MODELS_PROTOCOL_MODEL_TURN_H_
