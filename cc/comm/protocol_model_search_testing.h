#ifndef JAX_CXL_COMM_PROTOCOL_MODEL_SEARCH_TESTING_H_
#define JAX_CXL_COMM_PROTOCOL_MODEL_SEARCH_TESTING_H_

#include <cstdint>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "cc/comm/protocol_model_testing.h"

namespace jax_cxl::comm::model {

struct Outcome {
  uint64_t states = 0;
  uint64_t transitions = 0;
  std::string wrong;               // empty: nothing is
  std::vector<std::string> trace;  // that leads there
};

// Visits every state that can be reached, or the first that is wrong. Every
// step counts something up, so the search for states that nothing leads out of
// finds whatever goes on for ever.
inline Outcome Explore(const Configuration& setup) {
  struct Level {
    State state;
    std::vector<Model::Move> moves;
    size_t next = 0;
  };
  // Two independent hashes stand for a state: among 10^8 states, two share
  // both with a probability below 10^-22.
  struct Key {
    uint64_t a, b;
    bool operator==(const Key&) const = default;
  };
  struct HashKey {
    size_t operator()(const Key& key) const { return key.a; }
  };
  const auto key_of = [](const State& state) {
    const auto* bytes = reinterpret_cast<const unsigned char*>(&state);
    Key key{0xcbf29ce484222325u, 0x9e3779b97f4a7c15u};
    for (size_t i = 0; i < sizeof(State); ++i) {
      key.a = (key.a ^ bytes[i]) * 0x100000001b3u;
      key.b = (key.b + bytes[i]) * 0xd6e8feb86659fd93u;
      key.b ^= key.b >> 32;
    }
    return key;
  };
  Model model(setup);
  Outcome outcome;
  std::unordered_set<Key, HashKey> visited;
  std::vector<Level> path;
  const auto visit = [&](const State& state) {
    if (!visited.insert(key_of(state)).second) return true;
    ++outcome.states;
    Level& level = path.emplace_back();
    level.state = state;
    outcome.wrong = model.Moves(state, &level.moves);
    outcome.transitions += level.moves.size();
    return outcome.wrong.empty();
  };
  State start;
  std::memset(&start, 0, sizeof(start));
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
    const Model::Move& move = level.moves[level.next - 1];
    outcome.trace.push_back("rank " + std::to_string(move.rank) + " " +
                            move.what);
  }
  return outcome;
}

}  // namespace jax_cxl::comm::model

#endif  // JAX_CXL_COMM_PROTOCOL_MODEL_SEARCH_TESTING_H_
