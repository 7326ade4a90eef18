// Sanitizers: none. It visits very many states.

// Tries every order of every step of ranks that give the memory of a group to
// another group, with a death of one rank at any point. Checks that no rank
// reads a message of another group, and that every live rank ends or waits for
// a dead rank.
#include "cc/testing/models/memory_model.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "cc/testing/models/search_testing.h"

namespace jax_cxl::comm::memory_model {
namespace {

using model::ExpectFaultIsFound;
using model::ExpectRightInEveryOrder;

// Two groups, both of the same two ranks.
Configuration TwoRanks() {
  return {.groups = {3, 3}, .calls = {0, 1, 1, 0, 0, 1, 0, 0, 1, 1, 0}};
}
// Three groups: each pair of the three ranks.
Configuration Pairs() {
  return {.ranks = 3, .groups = {3, 5, 6}, .calls = {0, 1, 2, 0, 2, 1}};
}
// Rank 1 waits in the group of ranks 0 and 1, while rank 0 uses its own memory
// for the group of ranks 0 and 2.
Configuration Ahead() {
  return {.ranks = 3, .groups = {3, 5}, .calls = {0, 0, 1, 1, 0, 1, 0}};
}
Configuration AllAndPair() {
  return {.ranks = 3, .groups = {7, 3, 7}, .calls = {0, 1, 0, 2, 1}};
}

Configuration Broken(Configuration setup, Fault fault) {
  setup.fault = fault;
  return setup;
}

TEST(MemoryModelTest, TwoRanks) { ExpectRightInEveryOrder(Model(TwoRanks())); }
TEST(MemoryModelTest, Pairs) { ExpectRightInEveryOrder(Model(Pairs())); }
TEST(MemoryModelTest, Ahead) { ExpectRightInEveryOrder(Model(Ahead())); }
TEST(MemoryModelTest, AllAndPair) {
  ExpectRightInEveryOrder(Model(AllAndPair()));
}

TEST(MemoryModelTest, EveryFaultIsFound) {
  const std::vector<std::pair<Fault, Configuration>> faults = {
      {Fault::kFinishedWait, TwoRanks()}, {Fault::kFirst, Ahead()},
      {Fault::kWholeRing, Ahead()},       {Fault::kVersion, Ahead()},
      {Fault::kFollowMoves, TwoRanks()},  {Fault::kEnded, Pairs()}};
  for (const auto& [fault, setup] : faults) {
    SCOPED_TRACE(kFaultNames[static_cast<int>(fault)]);
    ExpectFaultIsFound(Model(Broken(setup, fault)));
  }
}

}  // namespace
}  // namespace jax_cxl::comm::memory_model
