#ifndef JAX_CXL_TESTING_MODELS_PROTOCOL_MODEL_SEARCH_H_
#define JAX_CXL_TESTING_MODELS_PROTOCOL_MODEL_SEARCH_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <type_traits>
#include <vector>

// Tries every order of every step of a model.
namespace jax_cxl::comm::model {

// A step that some rank can make, or a random event, and the state after it.
template <typename State>
struct Transition {
  int rank;
  const char* what;
  State next;
};

struct Outcome {
  uint64_t states = 0;
  uint64_t transitions = 0;
  std::string wrong;               // empty: no problem
  std::vector<std::string> trace;  // steps that lead to the problem
};

// Two independent hashes, which represent a state. The probability that two of
// 10^8 states have the same hashes is below 10^-22.
struct StateKey {
  uint64_t a = 0, b = 0;
  bool operator==(const StateKey&) const = default;

  template <typename State>
  static StateKey Of(const State& state) {
    static_assert(std::has_unique_object_representations_v<State>);
    uint64_t words[(sizeof(State) + 7) / 8] = {};
    std::memcpy(words, &state, sizeof(State));
    StateKey key{0xcbf29ce484222325u, 0x9e3779b97f4a7c15u};
    for (uint64_t word : words) {
      key.a = (key.a ^ word) * 0x9fb21c651e98df25u;
      key.a ^= key.a >> 32;
      key.b = (key.b + word) * 0xd6e8feb86659fd93u;
      key.b ^= key.b >> 29;
    }
    return key;
  }
};

// The set of states seen so far. It is one hash table without nodes, because
// there are millions of states.
class SeenStates {
 public:
  // Returns false if the key was there already.
  bool Insert(const StateKey& key) {
    if (2 * (size_ + 1) > keys_.size()) Grow();
    StateKey* place = Find(key);
    if (*place == key) return false;
    *place = key;
    ++size_;
    return true;
  }

 private:
  // Returns the place of the key, or the free place where it belongs. A free
  // place holds a key of zeros, which no state has.
  StateKey* Find(const StateKey& key) {
    size_t at = key.a & (keys_.size() - 1);
    while (keys_[at] != key && keys_[at] != StateKey())
      at = (at + 1) & (keys_.size() - 1);
    return &keys_[at];
  }
  void Grow() {
    std::vector<StateKey> keys(std::max<size_t>(1 << 16, 4 * keys_.size()));
    keys.swap(keys_);
    for (const StateKey& key : keys)
      if (key != StateKey()) *Find(key) = key;
  }

  std::vector<StateKey> keys_;  // its size is a power of two
  size_t size_ = 0;
};

// Visits every state that can be reached, or stops at the first wrong state.
// Every step of a model increments a counter, so no sequence of steps goes on
// forever. A protocol that gets stuck therefore ends in a state without further
// steps.
//
// `model.Moves(state, &moves)` appends all steps from a state. It returns what
// is wrong with the state, or "". The search starts from a state of zeros,
// which `model.Start(&state)` may change.
template <typename Model>
Outcome Explore(Model model) {
  using State = typename Model::State;
  struct Level {
    State state;
    std::vector<Transition<State>> moves;
    size_t next = 0;
  };
  Outcome outcome;
  SeenStates seen;
  std::vector<Level> path;
  const auto visit = [&](const State& state) {
    if (!seen.Insert(StateKey::Of(state))) return true;
    ++outcome.states;
    Level& level = path.emplace_back();
    level.state = state;
    outcome.wrong = model.Moves(level.state, &level.moves);
    outcome.transitions += level.moves.size();
    return outcome.wrong.empty();
  };
  State start;
  std::memset(&start, 0, sizeof(start));
  if constexpr (requires { model.Start(&start); }) model.Start(&start);
  bool good = visit(start);
  while (good && !path.empty()) {
    Level& level = path.back();
    if (level.next == level.moves.size()) {
      path.pop_back();
      continue;
    }
    const State next = level.moves[level.next++].next;
    good = visit(next);
  }
  for (const Level& level : path) {
    if (good || level.next == 0) continue;
    const Transition<State>& move = level.moves[level.next - 1];
    outcome.trace.push_back("rank " + std::to_string(move.rank) + " " +
                            move.what);
  }
  return outcome;
}

}  // namespace jax_cxl::comm::model

#endif  // JAX_CXL_TESTING_MODELS_PROTOCOL_MODEL_SEARCH_H_
